//===- ChatDate.cpp - Dates in a chat template, whatever the locale -------===//

#include "ChatDate.h"

#include <array>
#include <cstddef>

using namespace buddy;

namespace {

constexpr std::string_view conversions = "aAbBdemYyjHIMSpFT%";
constexpr std::array<std::string_view, 7> days = {"Sunday",   "Monday", "Tuesday", "Wednesday",
                                                  "Thursday", "Friday", "Saturday"};
constexpr std::array<std::string_view, 12> months = {"January",   "February", "March",    "April",
                                                     "May",       "June",     "July",     "August",
                                                     "September", "October",  "November", "December"};

std::string padded(int value, std::size_t width, char fill = '0') {
  std::string digits = std::to_string(value);
  return digits.size() < width ? std::string(width - digits.size(), fill) + digits : digits;
}

/// names[index], for a date from anywhere.
template <std::size_t N> std::string_view nameOf(const std::array<std::string_view, N> &names, int index) {
  return index >= 0 && static_cast<std::size_t>(index) < N ? names[static_cast<std::size_t>(index)] : "?";
}

std::string convert(char conversion, const std::tm &date) {
  switch (conversion) {
  case 'a':
    return std::string(nameOf(days, date.tm_wday).substr(0, 3));
  case 'A':
    return std::string(nameOf(days, date.tm_wday));
  case 'b':
    return std::string(nameOf(months, date.tm_mon).substr(0, 3));
  case 'B':
    return std::string(nameOf(months, date.tm_mon));
  case 'd':
    return padded(date.tm_mday, 2);
  case 'e':
    return padded(date.tm_mday, 2, ' ');
  case 'm':
    return padded(date.tm_mon + 1, 2);
  case 'Y':
    return std::to_string(date.tm_year + 1900);
  case 'y':
    return padded((date.tm_year + 1900) % 100, 2);
  case 'j':
    return padded(date.tm_yday + 1, 3);
  case 'H':
    return padded(date.tm_hour, 2);
  case 'I':
    return padded((date.tm_hour + 11) % 12 + 1, 2);
  case 'M':
    return padded(date.tm_min, 2);
  case 'S':
    return padded(date.tm_sec, 2);
  case 'p':
    return date.tm_hour < 12 ? "AM" : "PM";
  case 'F':
    return formatChatDate("%Y-%m-%d", date);
  case 'T':
    return formatChatDate("%H:%M:%S", date);
  default:
    return "%";
  }
}

} // namespace

bool buddy::isChatDateFormat(std::string_view format) {
  for (std::size_t i = 0; i < format.size(); ++i) {
    if (format[i] != '%')
      continue;
    ++i;
    if (format.substr(i, 2) == "-d")
      ++i;
    else if (i == format.size() || conversions.find(format[i]) == std::string_view::npos)
      return false;
  }
  return true;
}

std::string buddy::formatChatDate(std::string_view format, const std::tm &date) {
  std::string out;
  for (std::size_t i = 0; i < format.size(); ++i) {
    if (format[i] != '%') {
      out += format[i];
      continue;
    }
    ++i;
    if (format[i] == '-') {
      ++i;
      out += std::to_string(date.tm_mday);
    } else {
      out += convert(format[i], date);
    }
  }
  return out;
}
