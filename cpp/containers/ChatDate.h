//===- ChatDate.h - Dates in a chat template, whatever the locale ---------===//

#ifndef BUDDY_CHATDATE_H
#define BUDDY_CHATDATE_H

#include <ctime>
#include <string>
#include <string_view>

namespace buddy {

/// True when every conversion of a strftime format is one that formatChatDate writes.
bool isChatDateFormat(std::string_view format);

/// What Python's strftime gives in the C locale. `format` satisfies isChatDateFormat.
std::string formatChatDate(std::string_view format, const std::tm &date);

} // namespace buddy

#endif // BUDDY_CHATDATE_H
