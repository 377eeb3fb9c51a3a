//===- weights_test.cpp - Weights files, good and bad ---------------------===//

#include "buddy/Weights.h"

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>

#include <unistd.h>

#include "Check.h"
#include "SafetensorsHeader.h"
#include "Sha256.h"

using buddy::Weights;

static const std::string abi(64, 'a'), otherAbi(64, 'b'), modelId(64, 'c');
static std::string path;

static void writeFile(const std::string &content) {
  unlink(path.c_str()); // a new file: some file systems flush one that is written anew
  std::ofstream(path, std::ios::binary | std::ios::trunc) << content;
}

static std::string fileOf(std::string header, const std::string &data) {
  header.resize((8 + header.size() + 63) / 64 * 64 - 8, ' ');
  std::string content;
  for (int i = 0; i < 8; ++i)
    content += static_cast<char>(header.size() >> (8 * i));
  return content + header + data;
}

static std::string metadata(const std::string &data) {
  return R"("__metadata__":{"format":"buddy-weights","format_version":"1","abi":")" + abi + R"(","model_id":")" +
         modelId + R"(","exporter":"0.1","name":"\u00e9\ud83d\ude00\n","content_sha256":")" +
         buddy::sha256Hex(data.data(), data.size()) + "\"}";
}

static std::string goodFile() {
  const std::string data(128, 'x');
  return fileOf("{" + metadata(data) + R"(, "a": {"dtype": "F32", "shape": [4, 4], "data_offsets": [0, 64]},
    "b":{"data_offsets":[64,128],"dtype":"BF16","shape":[32]},"empty":{"dtype":"I8","shape":[0,9],"data_offsets":[64,64]}})",
                data);
}

static void checkGoodFile() {
  writeFile(goodFile());
  Weights weights = Weights::open(path, abi);
  CHECK(weights.bytes() == 128 && weights.base()[127] == 'x');
  CHECK(reinterpret_cast<std::uintptr_t>(weights.base()) % 64 == 0);
  CHECK(weights.modelId() == modelId && weights.path() == path);
  CHECK(weights.metadata("name") == "\xc3\xa9\xf0\x9f\x98\x80\n");
  auto array = weights.memref();
  CHECK(array.data() == weights.base() && array.size() == 128 && !array.owns());
  weights.verify();
  Weights moved = std::move(weights);
  CHECK(moved.bytes() == 128 && moved.base()[0] == 'x');
  CHECK(errorOf([&] { moved.metadata("nothing"); }).find("nothing") != std::string::npos);
}

/// Whatever is cut off or overwritten: an error or, where the byte means nothing, a good file; never a crash.
static void checkDamage() {
  const std::string good = goodFile();
  for (std::size_t size = 0; size < good.size(); ++size) {
    writeFile(good.substr(0, size));
    errorOf([] { Weights::open(path, abi); });
  }
  for (std::size_t at = 0; at < good.size(); ++at)
    for (char byte : {'\0', '\xff', '"', '9', '}', '\\'}) {
      std::string bad = good;
      bad[at] = byte;
      writeFile(bad);
      try {
        Weights::open(path, abi);
      } catch (const buddy::Error &) {
      }
    }
  std::string bad = good;
  bad.back() = 'y';
  writeFile(bad);
  const Weights weights = Weights::open(path, abi);
  CHECK(errorOf([&] { weights.verify(); }).find("SHA-256") != std::string::npos);
}

static void checkAbi() {
  writeFile(goodFile());
  const std::string message = errorOf([] { Weights::open(path, otherAbi); });
  CHECK(message.find(abi) != std::string::npos && message.find(otherAbi) != std::string::npos);
  CHECK(errorOf([] { Weights::open("/nowhere/x", abi); }).find("'/nowhere/x'") != std::string::npos);
  CHECK(errorOf([] { Weights::open("/", abi); }).find("no regular file") != std::string::npos);
}

/// F2 and relatives; `part` must stand in the message.
static void checkHeaders() {
  const struct {
    const char *json, *part;
  } bad[] = {
      {"", "'{'"},
      {"{", "'\"'"},
      {R"({"a)", "no end"},
      {"{}x", "more text"},
      {"[]", "'{'"},
      {R"({"a":1})", "'{'"},
      {R"({"a":{}})", "lacks"},
      {R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1],"more":[1]}})", "more"},
      {R"({"a":{"dtype":"U8","dtype":"U8","shape":[1],"data_offsets":[0,1]}})", "repeated"},
      {R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0]}})", "lacks"},
      {R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[1,0]}})", "lacks"},
      {R"({"a":{"dtype":"U7","shape":[1],"data_offsets":[0,1]}})", "U7"},
      {R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}})", "disagrees"},
      {R"({"a":{"dtype":"F4","shape":[1],"data_offsets":[0,1]}})", "whole bytes"},
      {R"({"a":{"dtype":"U8","shape":[4294967296,4294967296],"data_offsets":[0,0]}})", "too large"},
      {R"({"a":{"dtype":"U8","shape":[99999999999999999999],"data_offsets":[0,0]}})", "too large"},
      {R"({"a":{"dtype":"U8","shape":[-1],"data_offsets":[0,0]}})", "natural"},
      {R"({"a":{"dtype":"U8","shape":[01],"data_offsets":[0,1]}})", "leading zero"},
      {R"({"a":{"dtype":"U8","shape":[1.0],"data_offsets":[0,1]}})", "']'"},
      {R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})", "hole"},
      {R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"b":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}})",
       "overlaps"},
      {R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})",
       "twice"},
      {R"({"__metadata__":{},"__metadata__":{}})", "twice"},
      {R"({"__metadata__":{"a":"1","a":"2"}})", "twice"},
      {R"({"__metadata__":{"a":1}})", "'\"'"},
      {R"({"__metadata__":{"a":"\x"}})", "escape"},
      {R"({"__metadata__":{"a":"\u12"}})", "escape"},
      {R"({"__metadata__":{"a":"\ud800"}})", "surrogate"},
      {R"({"__metadata__":{"a":"\udc00\ud800"}})", "surrogate"},
      {"{\"__metadata__\":{\"a\":\"\n\"}}", "control"},
      {R"({"__metadata__":{"a":"1",}})", "'\"'"},
  };
  for (const auto &[json, part] : bad) {
    const std::string message = errorOf([&, text = json] { buddy::parseSafetensorsHeader(text); });
    if (message.find(part) == std::string::npos)
      std::fprintf(stderr, "%s\n%s\n", json, message.c_str());
    CHECK(message.find(part) != std::string::npos);
  }
  const auto header =
      buddy::parseSafetensorsHeader("{\"b\":{\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[4,5]},\n"
                                    "\"a\":{\"shape\":[1],\"dtype\":\"F32\",\"data_offsets\":[0,4]}}  ");
  CHECK(header.dataBytes == 5 && header.metadata.empty());
  std::string deep = R"({"a":{"dtype":"U8","shape":)" + std::string(1000000, '[');
  errorOf([&] { buddy::parseSafetensorsHeader(deep); });
}

/// The header of a model with many tensors is read in no time, and the data are not touched.
static void checkLoadTime() {
  std::string header = "{" + metadata("");
  for (int i = 0; i < 20000; ++i)
    header += ",\"model.layers." + std::to_string(i) + R"(.weight":{"dtype":"F32","shape":[16],"data_offsets":[)" +
              std::to_string(i * 64) + "," + std::to_string(i * 64 + 64) + "]}";
  writeFile(fileOf(header + "}", std::string(20000 * 64, 'x')));
  const auto start = std::chrono::steady_clock::now();
  const Weights weights = Weights::open(path, abi);
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  std::printf("20,000 tensors opened in %.1f ms\n", seconds * 1e3);
  CHECK(seconds < 1);
}

/// FIPS 180-4's examples, and the million letters of its test vectors.
static void checkSha256() {
  CHECK(buddy::sha256Hex("", 0) == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  CHECK(buddy::sha256Hex("abc", 3) == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  const std::string two = "abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq";
  CHECK(buddy::sha256Hex(two.data(), two.size()) == "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  const std::string million(1000000, 'a');
  CHECK(buddy::sha256Hex(million.data(), million.size()) ==
        "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

int main() {
  const char *folder = std::getenv("TMPDIR");
  path = std::string(folder ? folder : "/tmp") + "/weights-test-" + std::to_string(getpid()) + ".safetensors";
  checkSha256();
  checkHeaders();
  checkGoodFile();
  checkAbi();
  checkDamage();
  checkLoadTime();
  unlink(path.c_str());
}
