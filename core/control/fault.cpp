#include "core/control/fault.h"

#include <algorithm>
#include <set>

#include "core/base/error.h"
#include "core/config/node.h"

namespace convoy {
namespace {

using Kind = Fault::Kind;
using Detail = Fault::Detail;
using Point = InjectPoint;

enum class Value { none, seconds, code, detail };

struct KindWords {
  const char* word;
  Kind kind;
  Value value;
  std::vector<std::pair<const char*, Detail>> details;  // the first is the default
  std::set<Point> points;
  bool in_block;
};

struct PointWords {
  const char* word;
  Point point;
  int64_t first;      // the least number
  bool needs_number;  // false: the least number is the default
};

// A pause or an exception in the middle of a wait would hold locks that other threads need.
const std::set<Point> rank_thread_points{Point::join, Point::epoch, Point::step, Point::evaluate, Point::save};
const std::set<Point> anywhere{Point::join, Point::epoch, Point::step, Point::collective, Point::evaluate, Point::save};
const std::set<Point> in_steps{Point::epoch, Point::step};

const std::vector<KindWords>& kinds() {
  static const std::vector<KindWords> all{
      {"kill", Kind::kill, Value::none, {}, anywhere, true},
      {"stop", Kind::stop, Value::none, {}, anywhere, true},
      {"throw", Kind::raise, Value::none, {}, rank_thread_points, true},
      {"exit", Kind::exit, Value::code, {}, anywhere, true},
      {"segv", Kind::segv, Value::none, {}, anywhere, true},
      {"sleep", Kind::sleep, Value::seconds, {}, rank_thread_points, true},
      {"loop", Kind::loop, Value::none, {}, rank_thread_points, true},
      {"nan", Kind::nan, Value::none, {}, in_steps, true},
      {"mismatch",
       Kind::mismatch,
       Value::detail,
       {{"shape", Detail::shape},
        {"dtype", Detail::dtype},
        {"operation", Detail::operation},
        {"parameters", Detail::parameters}},
       in_steps,
       false},
      {"enospc",
       Kind::enospc,
       Value::detail,
       {{"write", Detail::write}, {"fsync", Detail::fsync}, {"close", Detail::close}},
       {Point::save},
       false},
      {"drop-heartbeat", Kind::drop_heartbeat, Value::none, {}, rank_thread_points, false},
      {"cut-network", Kind::cut_network, Value::seconds, {}, rank_thread_points, false},
      {"orphan", Kind::orphan, Value::none, {}, rank_thread_points, false},
  };
  return all;
}

const std::vector<PointWords>& points() {
  static const std::vector<PointWords> all{
      {"join", Point::join, 0, false},         {"epoch", Point::epoch, 1, true},
      {"step", Point::step, 0, true},          {"collective", Point::collective, 0, true},
      {"evaluate", Point::evaluate, 1, false}, {"save", Point::save, 1, false},
  };
  return all;
}

template <class Words>
std::vector<std::string> words_of(const Words& all) {
  std::vector<std::string> words;
  for (const auto& each : all) words.push_back(each.word);
  return words;
}

std::vector<std::string> words_of(const std::set<Point>& allowed) {
  std::vector<std::string> words;
  for (const PointWords& point : points())
    if (allowed.count(point.point) != 0) words.push_back(str(point.word, point.needs_number ? "=N" : ""));
  return words;
}

class Parser {
 public:
  explicit Parser(const std::string& text) : text_(text) {}

  Fault parse() {
    fault_.text = text_;
    for (const Piece& piece : pieces()) {
      if (words_ == nullptr)
        take_kind(piece);
      else if (piece.separator == '@')
        take_point(piece);
      else
        take_setting(piece);
    }
    finish();
    return fault_;
  }

 private:
  struct Piece {
    char separator;  // the separator before it: 0 for the first, else ':' or '@'
    std::string text;
  };

  [[noreturn]] void refuse(const std::string& reason) const {
    throw Error(Failure::command_line, "--inject ", printable(text_), ": ", reason);
  }

  [[noreturn]] void unknown(const std::string& what, const std::string& word,
                            const std::vector<std::string>& valid) const {
    const std::string near = nearest(word, valid);
    refuse(str("unknown ", what, " ", shown(word), near.empty() ? "" : str("; did you mean ", near, "?"),
               near.empty() ? "; one of " : " One of ", join(valid, ", ")));
  }

  std::vector<Piece> pieces() const {
    std::vector<Piece> found{{0, ""}};
    for (const char letter : text_) {
      if (letter == ':' || letter == '@')
        found.push_back({letter, ""});
      else
        found.back().text += letter;
    }
    for (const Piece& piece : found)
      if (piece.text.empty())
        refuse("a word is missing; the form is FAULT[:SETTING…][@POINT], as in kill:rank=2@step=50");
    return found;
  }

  void once(const std::string& what) {
    if (!given_.insert(what).second) refuse(str(what, " is given twice"));
  }

  int64_t number(const std::string& name, const std::string& text, int64_t least, int64_t most) const {
    const Parsed<int64_t> parsed = parse_integer(text);
    if (!parsed.value || *parsed.value < least || *parsed.value > most)
      refuse(str(name, "=", printable(text), ": must be a whole number from ", least,
                 most < most_steps ? str(" to ", most) : std::string(" on")));
    return *parsed.value;
  }

  void take_kind(const Piece& piece) {
    for (const KindWords& kind : kinds())
      if (piece.text == kind.word) words_ = &kind;
    if (words_ == nullptr) unknown("fault", piece.text, words_of(kinds()));
    fault_.kind = words_->kind;
  }

  void take_point(const Piece& piece) {
    once("the point (@…)");
    const size_t equals = piece.text.find('=');
    const std::string word = piece.text.substr(0, equals);
    const PointWords* found = nullptr;
    for (const PointWords& point : points())
      if (word == point.word) found = &point;
    if (found == nullptr) unknown("point", word, words_of(points()));
    if (words_->points.count(found->point) == 0)
      refuse(str(words_->word, " does not happen @", word, "; it may be @", join(words_of(words_->points), ", @")));
    if (equals == std::string::npos && found->needs_number)
      refuse(str("@", word, " needs a number, as in @", word, "=50"));
    if (equals != std::string::npos && found->point == Point::join) refuse("@join takes no number");
    fault_.point = found->point;
    fault_.number = equals == std::string::npos ? found->first
                                                : number(word, piece.text.substr(equals + 1), found->first, most_steps);
  }

  void take_setting(const Piece& piece) {
    const size_t equals = piece.text.find('=');
    const std::string name = piece.text.substr(0, equals);
    const std::string value = equals == std::string::npos ? "" : piece.text.substr(equals + 1);
    if (name == "rank" && equals != std::string::npos) {
      once("rank");
      fault_.rank = value == "last"  ? Fault::last_rank
                    : value == "all" ? Fault::all_ranks
                                     : static_cast<int>(number("rank", value, 0, most_ranks));
    } else if (name == "block" && equals != std::string::npos) {
      once("block");
      if (!words_->in_block) refuse(str(words_->word, " does not happen in a block of the model"));
      fault_.block = number("block", value, 0, most_ranks);
    } else if (name == "attempt" && equals != std::string::npos) {
      once("the attempt");
      fault_.attempt = static_cast<int>(number("attempt", value, 0, most_ranks));
    } else if (piece.text == "always") {
      once("the attempt");
      fault_.attempt = Fault::all_attempts;
    } else {
      take_value(piece.text);
    }
  }

  void take_value(const std::string& text) {
    if (words_->value == Value::seconds && parse_duration(text).value) {
      once("the time");
      fault_.seconds = *parse_duration(text).value;
      if (fault_.seconds < 0) refuse(str(text, ": must not be below 0"));
      if (fault_.seconds > day) refuse(str(text, ": longer than a day"));
      return;
    }
    if (words_->value == Value::code && parse_integer(text).value) {
      once("the exit code");
      fault_.code = static_cast<int>(number("code", text, 0, 255));
      return;
    }
    for (const auto& [word, detail] : words_->details)
      if (text == word) {
        once("the failing operation");
        fault_.detail = detail;
        return;
      }
    std::vector<std::string> valid{"rank=N", "rank=last", "rank=all", "attempt=N", "always"};
    if (words_->in_block) valid.push_back("block=N");
    if (words_->value == Value::seconds) valid.push_back("a time such as 5s");
    if (words_->value == Value::code) valid.push_back("an exit code");
    for (const auto& [word, detail] : words_->details) valid.push_back(word);
    unknown("setting", text, valid);
  }

  void finish() {
    if (fault_.kind == Kind::sleep && given_.count("the time") == 0) refuse("for how long? Type sleep:5s");
    if (!words_->details.empty() && fault_.detail == Detail::none) fault_.detail = words_->details.front().second;
    const bool has_point = given_.count("the point (@…)") != 0;
    if (fault_.detail == Detail::parameters) {
      if (has_point) refuse("parameters differ from the start, so there is no point; leave out @…");
      fault_.point = Point::join;
    } else if (!has_point && fault_.kind == Kind::enospc) {
      fault_.point = Point::save;
    }
    if (fault_.block >= 0 && fault_.point != Point::step && fault_.point != Point::epoch)
      refuse("block= is for a step or an epoch: only there the model goes forward in training");
  }

  static constexpr int64_t most_steps = 1'000'000'000'000;
  static constexpr int64_t most_ranks = 1'000'000;
  static constexpr double day = 86400;

  const std::string& text_;
  const KindWords* words_ = nullptr;
  std::set<std::string> given_;
  Fault fault_;
};

// True for faults that need a decorated model.
bool needs_model(const Fault& fault) {
  return fault.kind == Kind::nan || fault.block >= 0 || fault.detail == Detail::parameters;
}

}  // namespace

bool Fault::concerns(int which, int size, int of_attempt) const {
  if (attempt != all_attempts && attempt != of_attempt) return false;
  return rank == all_ranks || which == (rank == last_rank ? size - 1 : rank);
}

Fault fault_from_text(const std::string& text) { return Parser(text).parse(); }

std::vector<Fault> faults_from_texts(const std::vector<std::string>& texts, int ranks) {
  std::vector<Fault> faults;
  for (const std::string& text : texts) {
    faults.push_back(fault_from_text(text));
    if (ranks > 0 && faults.back().rank >= ranks)
      throw Error(Failure::command_line, "--inject ", printable(text), ": there is no rank ", faults.back().rank,
                  ": the job has ", ranks, ranks == 1 ? " rank, 0" : str(" ranks, 0 to ", ranks - 1));
  }
  return faults;
}

void check_faults_of_program(const std::vector<Fault>& faults) {
  for (const Fault& fault : faults) {
    if (!needs_model(fault)) continue;
    std::vector<std::string> others = words_of(kinds());
    others.erase(std::remove(others.begin(), others.end(), "nan"), others.end());
    throw Error(Failure::command_line, "--inject ", printable(fault.text),
                ": happens in a block of convoy's model, and a program has its own model, so nan, mismatch:parameters "
                "and block= do not happen there; use one of ",
                join(others, ", "));
  }
}

}  // namespace convoy
