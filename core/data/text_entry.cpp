// text: what its user can write.
#include "core/config/without_effect.h"
#include "core/describe.h"

namespace convoy {
namespace {

void check(const Options& options) {
  if (options.text("vocabulary") == "bytes")
    refuse_without_effect(options, "unknown",
                          "has no use with vocabulary: bytes, which has a token for each byte; leave it out",
                          {options.mark("vocabulary")});
}

}  // namespace

Entry text_entry() {
  Entry entry;
  entry.name = "text";
  entry.help = "sequences of tokens from a text file, each token to be told from those before it; memory-mapped";
  entry.options = {
      describe::text("path", "the file of plain text; its bytes are taken as they are").must(),
      describe::text(
          "vocabulary",
          "bytes: a token each, 256 of them; or a file of tokens: one a line (\\n, \\t, \\r, \\s, \\\\, \\xHH "
          "stand for bytes), or JSON, a list of tokens or a map from token to number. Tokens are literal text; files "
          "of Hugging Face "
          "tokenizers are refused",
          "bytes"),
      describe::text("unknown",
                     "the vocabulary's token for a byte that none of its tokens begins with; without it "
                     "such a byte is an error")
          .may_be_null(),
      describe::integer("length", "of a sequence", 128).at_least(1).at_most(1 << 24).in("tokens"),
      describe::section("evaluate", "the sequences to evaluate on",
                        {describe::real("fraction", "of the file, its end", 0.1).at_least(0).at_most(0.99)}),
  };
  entry.check = check;
  return entry;
}

}  // namespace convoy
