//===- text-tool.cpp - The Text container behind a pipe -------------------===//
//
// Reads requests from stdin and answers them on stdout, on a thread with a stack of 256 KiB. A request is a length
// (u32) and as many bytes: a letter and its arguments. An answer is a length and as many bytes: 0 and the result, or
// 1 and an Error's sentence. Numbers are little-endian, a string is a u32 length and its bytes. See text_tool.py.
//
//===----------------------------------------------------------------------===//

#include "buddy/Text.h"

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <optional>
#include <pthread.h>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

using namespace buddy;

namespace {

constexpr std::size_t stackSize = 256 * 1024;

/// Arguments of a request. The test that writes them is trusted; a wrong size ends the program.
class Arguments {
public:
  explicit Arguments(std::string_view request) : bytes(request) {}

  std::string_view rest() { return take(bytes.size()); }
  bool flag() { return take(1)[0] != 0; }
  bool empty() const { return bytes.empty(); }
  std::uint32_t u32() {
    std::uint32_t value = 0;
    const std::string_view field = take(4);
    for (std::size_t i = 0; i < 4; ++i)
      value |= static_cast<std::uint32_t>(static_cast<unsigned char>(field[i])) << (8 * i);
    return value;
  }
  std::string string() { return std::string(take(u32())); }
  std::vector<std::int32_t> ids() {
    std::vector<std::int32_t> result;
    while (!empty())
      result.push_back(static_cast<std::int32_t>(u32()));
    return result;
  }
  std::tm date() {
    std::tm result{};
    for (int *field : {&result.tm_year, &result.tm_mon, &result.tm_mday, &result.tm_hour, &result.tm_min,
                       &result.tm_sec, &result.tm_wday, &result.tm_yday})
      *field = static_cast<int>(u32());
    return result;
  }

private:
  std::string_view take(std::size_t size) {
    if (size > bytes.size())
      std::exit(3);
    const std::string_view taken = bytes.substr(0, size);
    bytes.remove_prefix(size);
    return taken;
  }
  std::string_view bytes;
};

void put(std::string &out, std::uint32_t value) {
  for (int shift = 0; shift < 32; shift += 8)
    out += static_cast<char>(value >> shift & 0xff);
}

void put(std::string &out, std::string_view text) {
  put(out, static_cast<std::uint32_t>(text.size()));
  out += text;
}

std::string pack(const std::vector<std::int32_t> &ids) {
  std::string out;
  for (const std::int32_t id : ids)
    put(out, static_cast<std::uint32_t>(id));
  return out;
}

std::string pack(const std::vector<OwnedSegment> &segments) {
  std::string out;
  for (const OwnedSegment &segment : segments) {
    out += segment.parseSpecial ? '\1' : '\0';
    put(out, segment.text);
  }
  return out;
}

std::string describe(const Text &text) {
  std::string out = text.abi() + "\n" + text.modelId() + "\n" + std::to_string(text.vocabSize()) + "\n" +
                    std::to_string(text.bos().value_or(-1)) + "\n" + std::to_string(text.eos().value_or(-1)) + "\n" +
                    (text.addsBos() ? "1" : "0") + (text.addsEos() ? "1" : "0") + "\n";
  for (const std::int32_t id : text.endIds())
    out += std::to_string(id) + (text.isEnd(id) ? " " : "?");
  out += "\n";
  if (!text.chat())
    return out + "no chat\n" + text.chatUnavailableReason();
  return out + (text.chat()->supportsSystem() ? "chat\n" : "chat without system\n") +
         text.chat()->systemUnsupportedReason();
}

std::string stream(const Text &text, Arguments &arguments) {
  Text::Decoder decoder = text.decoder(arguments.flag());
  std::string out;
  for (const std::int32_t id : arguments.ids())
    put(out, decoder.push(id));
  put(out, decoder.finish());
  return out;
}

std::string render(const ChatTemplate &chat, Arguments &arguments) {
  const bool addGenerationPrompt = arguments.flag();
  const std::tm today = arguments.date();
  std::vector<ChatMessage> messages;
  while (!arguments.empty()) {
    const auto role = static_cast<ChatRole>(arguments.u32());
    messages.push_back({role, arguments.string()});
  }
  return pack(chat.render(messages, addGenerationPrompt, &today));
}

std::string firstTurn(const ChatTemplate &chat, Arguments &arguments) {
  const bool hasSystem = arguments.flag();
  const std::tm today = arguments.date();
  const std::string system = arguments.string();
  return pack(chat.firstTurn(hasSystem ? &system : nullptr, arguments.string(), &today));
}

std::string nextTurn(const ChatTemplate &chat, Arguments &arguments) {
  const std::tm today = arguments.date();
  const std::string written = arguments.string();
  return pack(chat.nextTurn(arguments.string(), written, &today));
}

std::string encodeSegments(const Text &text, Arguments &arguments) {
  const bool addSpecial = arguments.flag();
  std::vector<OwnedSegment> segments;
  while (!arguments.empty()) {
    const bool parseSpecial = arguments.flag();
    segments.push_back({arguments.string(), parseSpecial});
  }
  std::vector<Segment> views;
  for (const OwnedSegment &segment : segments)
    views.push_back({segment.text, segment.parseSpecial});
  return pack(text.encode(views, addSpecial));
}

/// Whether several threads that encode and decode at the same time get what one gets alone.
std::string inParallel(const Text &text, std::string_view content) {
  constexpr int threadCount = 4, rounds = 20;
  const std::vector<std::int32_t> alone = text.encode(content, true, true);
  const std::string decoded = text.decode(alone, false);
  std::atomic<bool> same = true;
  std::vector<std::thread> threads;
  for (int i = 0; i < threadCount; ++i)
    threads.emplace_back([&] {
      for (int round = 0; round < rounds; ++round)
        if (text.encode(content, true, true) != alone || text.decode(alone, false) != decoded)
          same = false;
    });
  for (std::thread &thread : threads)
    thread.join();
  return same ? "same" : "different";
}

/// The loaded file; 'l' loads another one.
std::optional<Text> loaded;

const ChatTemplate &chat() {
  if (!loaded->chat())
    throw Error(loaded->chatUnavailableReason());
  return *loaded->chat();
}

std::string answer(std::string_view request) {
  Arguments arguments(request.substr(1));
  if (request[0] == 'l') {
    loaded = Text::load(std::string(arguments.rest()));
    return {};
  }
  if (request[0] == 'v') {
    std::size_t position = 0;
    const bool valid = isValidUtf8(arguments.rest(), &position);
    return valid ? "valid" : std::to_string(position);
  }
  if (!loaded)
    throw Error("No vocabulary is loaded.");
  switch (request[0]) {
  case 'i':
    return describe(*loaded);
  case 'e': {
    const bool addSpecial = arguments.flag();
    const bool parseSpecial = arguments.flag();
    return pack(loaded->encode(arguments.rest(), addSpecial, parseSpecial));
  }
  case 's':
    return encodeSegments(*loaded, arguments);
  case 'p':
    return inParallel(*loaded, arguments.rest());
  case 'd': {
    const bool skipSpecial = arguments.flag();
    return loaded->decode(arguments.ids(), skipSpecial);
  }
  case 't':
    return stream(*loaded, arguments);
  case 'c':
    return render(chat(), arguments);
  case 'f':
    return firstTurn(chat(), arguments);
  case 'n':
    return nextTurn(chat(), arguments);
  case 'k':
    return chat().keepsAnswer(arguments.rest()) ? "1" : "0";
  default:
    std::exit(3);
  }
}

bool readExactly(std::string &bytes) { return std::fread(bytes.data(), 1, bytes.size(), stdin) == bytes.size(); }

void *serve(void *) {
  std::string length(4, '\0');
  while (readExactly(length)) {
    std::string request(Arguments(length).u32(), '\0');
    if (request.empty() || !readExactly(request))
      std::exit(3);
    std::string reply;
    try {
      reply = '\0' + answer(request);
    } catch (const Error &error) {
      reply = std::string(1, '\1') + error.what();
    }
    std::string header;
    put(header, static_cast<std::uint32_t>(reply.size()));
    std::fwrite(header.data(), 1, header.size(), stdout);
    std::fwrite(reply.data(), 1, reply.size(), stdout);
    std::fflush(stdout);
  }
  return nullptr;
}

} // namespace

int main() {
  pthread_attr_t attributes;
  pthread_t thread;
  if (pthread_attr_init(&attributes) != 0 || pthread_attr_setstacksize(&attributes, stackSize) != 0 ||
      pthread_create(&thread, &attributes, serve, nullptr) != 0) {
    std::fputs("text-tool: no thread with a stack of 256 KiB could be made\n", stderr);
    return 2;
  }
  pthread_join(thread, nullptr);
}
