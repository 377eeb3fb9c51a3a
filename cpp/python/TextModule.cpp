//===- TextModule.cpp - The Text container for Python ---------------------===//
//
// buddy_gen._text, which python/buddy_gen/tokenizer.py wraps. Text comes and goes as UTF-8 bytes, ids as int32.
//
//===----------------------------------------------------------------------===//

#include "buddy/Text.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace nb = nanobind;
using namespace buddy;

namespace {

using Ids = std::vector<std::int32_t>;

std::string_view viewOf(const nb::bytes &bytes) { return {static_cast<const char *>(bytes.data()), bytes.size()}; }

/// A Python list, made at once; other threads run while ids are computed.
nb::list listOf(const Ids &ids) {
  nb::list list = nb::steal<nb::list>(PyList_New(static_cast<Py_ssize_t>(ids.size())));
  if (!list.is_valid())
    throw nb::python_error();
  for (std::size_t i = 0; i < ids.size(); ++i) {
    PyObject *id = PyLong_FromLong(ids[i]);
    if (!id)
      throw nb::python_error();
    PyList_SetItem(list.ptr(), static_cast<Py_ssize_t>(i), id);
  }
  return list;
}

nb::list encode(const Text &text, const nb::bytes &content, bool addSpecial, bool parseSpecial) {
  const std::string_view view = viewOf(content);
  Ids ids;
  {
    nb::gil_scoped_release released;
    ids = text.encode(view, addSpecial, parseSpecial);
  }
  return listOf(ids);
}

nb::list encodeSegments(const Text &text, const std::vector<std::pair<nb::bytes, bool>> &segments, bool addSpecial) {
  std::vector<Segment> views;
  views.reserve(segments.size());
  for (const auto &[content, parseSpecial] : segments)
    views.push_back({viewOf(content), parseSpecial});
  return listOf(text.encode(views, addSpecial));
}

std::string decode(const Text &text, const Ids &ids, bool skipSpecial) {
  nb::gil_scoped_release released;
  return text.decode(ids, skipSpecial);
}

} // namespace

NB_MODULE(_text, module) {
  nb::exception<Error>(module, "TextError");
  nb::class_<Text::Decoder>(module, "Decoder")
      .def("push", &Text::Decoder::push, nb::arg("id"))
      .def("finish", &Text::Decoder::finish);
  nb::class_<Text>(module, "Text")
      .def_static("load", &Text::load, nb::arg("path"))
      .def("encode", &encode, nb::arg("text"), nb::arg("add_special"), nb::arg("parse_special"))
      .def("encode_segments", &encodeSegments, nb::arg("segments"), nb::arg("add_special"))
      .def("decode", &decode, nb::arg("ids"), nb::arg("skip_special"))
      .def("decoder", &Text::decoder, nb::arg("skip_special"))
      .def("token_bytes",
           [](const Text &text, std::int32_t id) {
             const std::string_view bytes = text.tokenBytes(id);
             return nb::bytes(bytes.data(), bytes.size());
           })
      .def("is_special", &Text::isSpecial, nb::arg("id"))
      .def_prop_ro("vocab_size", &Text::vocabSize)
      .def_prop_ro("bos_id", &Text::bos)
      .def_prop_ro("eos_id", &Text::eos)
      .def_prop_ro("adds_bos", &Text::addsBos)
      .def_prop_ro("adds_eos", &Text::addsEos)
      .def_prop_ro("end_ids", [](const Text &text) { return listOf(text.endIds()); });
}
