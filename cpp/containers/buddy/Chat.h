//===- Chat.h - A model's chat template, compiled ahead of time -----------===//
//
// The generator reduces the model's own template to fixed pieces between the contents of a conversation and proves
// that joining them gives the template's output. A conversation is [system] user (assistant user)* [assistant].
// Pieces are the model's text, where special tokens are parsed; contents are a person's text, where they are not.
//
// A chat that keeps its KV cache:
//   ids = text.encode(chat.firstTurn(system, question), false);          // up to where the answer begins
//   ... generate; leave the end token out of the ids ...
//   ids += text.encode(chat.nextTurn(question), false);                  // ends the answer, asks the next question
//
// The template brings its own BOS, so nothing is added to it (addSpecial = false).
//
//===----------------------------------------------------------------------===//

#ifndef BUDDY_CHAT_H
#define BUDDY_CHAT_H

#include <array>
#include <cstdint>
#include <ctime>
#include <string>
#include <string_view>
#include <vector>

namespace buddy {

/// A piece of text that owns its bytes. Spellings of special tokens mean those tokens only if `parseSpecial`.
struct OwnedSegment {
  std::string text;
  bool parseSpecial;
};

enum class ChatRole : std::uint8_t { System, User, Assistant };

struct ChatMessage {
  ChatRole role;
  std::string content;
};

/// Fixed text with slots for the date, each filled when it is used.
struct ChatPiece {
  struct Part {
    bool isDate; // text is then a strftime format made of %a %A %b %B %d %-d %e %m %Y %y %j %H %I %M %S %p %F %T %%
    std::string text;
  };
  std::vector<Part> parts;
};

/// How the template treats a content before it shows it. Whitespace is what Python's str.strip takes.
struct ContentRule {
  bool trimLeft = false;
  bool trimRight = false;
  bool refuseBlank = false; // the template treats an empty content in a way of its own: there is no piece for that
};

class ChatTemplate {
public:
  /// The pieces by what stands to their left and right.
  enum Piece : std::uint8_t {
    Start,             // start | user
    SystemStart,       // start | system
    SystemToUser,      // system | user
    UserToAssistant,   // user | assistant, in the history
    AssistantToUser,   // assistant | user
    Generation,        // user | the answer that is to be generated
    EndAfterUser,      // user | end, without a generation prompt
    EndAfterAssistant, // assistant | end
    PieceCount
  };
  enum Content : std::uint8_t { System, UserAfterSystem, User, Assistant, ContentCount };

  struct Data {
    bool supportsSystem = false;
    std::string systemUnsupportedReason;
    std::array<ChatPiece, PieceCount> pieces;
    std::array<ContentRule, ContentCount> rules;
  };

  explicit ChatTemplate(Data reduced);

  /// Whether a system message can be given; if not, why.
  bool supportsSystem() const { return data.supportsSystem; }
  const std::string &systemUnsupportedReason() const { return data.systemUnsupportedReason; }

  /// The first question, from the beginning of the context to where the answer begins. `system` may be null: then the
  /// template's own default, if it has one, is used. `today` is the local date (null: now).
  /// Throws Error when the template has no place for a system message or refuses an empty content.
  std::vector<OwnedSegment> firstTurn(const std::string *system, std::string_view user,
                                      const std::tm *today = nullptr) const;

  /// What follows an answer: its end, the next question, and the beginning of the next answer. `written` is what of
  /// the answer's end is in the context already, such as the spelling of an end token that was fed back to the
  /// model; it is left out here. Leave it empty when the end token was not fed back.
  std::vector<OwnedSegment> nextTurn(std::string_view user, std::string_view written = {},
                                     const std::tm *today = nullptr) const;

  /// True when the template shows `answer` in a later turn's history just as it was generated, so that a chat that
  /// keeps its cache equals the template's text. Otherwise render the whole conversation anew.
  bool keepsAnswer(std::string_view answer) const;

  /// A whole conversation, byte for byte what the Jinja template gives. Throws Error for an order of roles other than
  /// [system] user (assistant user)* [assistant].
  std::vector<OwnedSegment> render(const std::vector<ChatMessage> &messages, bool addGenerationPrompt,
                                   const std::tm *today = nullptr) const;

private:
  void append(std::vector<OwnedSegment> &out, Piece piece, const std::tm &today) const;
  void append(std::vector<OwnedSegment> &out, Content slot, std::string_view content) const;

  Data data;
};

} // namespace buddy

#endif // BUDDY_CHAT_H
