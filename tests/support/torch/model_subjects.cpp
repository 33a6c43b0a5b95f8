#include "tests/support/torch/model_subjects.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/zeros.h>

#include "core/losses/losses.h"
#include "models/registry.h"
#include "tests/support/torch/random_tensors.h"

namespace convoy::testing {
namespace {

Subject subject(const char* name, std::function<ModelPtr()> model, Batch data) {
  return {name, std::move(model), make_cross_entropy(Options()), std::move(data)};
}

}  // namespace

Subject classifier_subject() {
  constexpr int64_t classes = 5;
  const auto model = [] {
    Schema schema;
    schema.fields["features"] = {{6}, at::kFloat, 0};
    schema.fields["target"] = {{}, at::kLong, classes};
    return make_mlp(Options(Json{{"hidden", {12, 10, 24}}, {"activation", "gelu"}, {"dropout", 0.2}}), schema);
  };
  Batch data;
  data.rows = subject_rows;
  data.tensors = {{"features", normal({subject_rows, 6}, "features", 5)},
                  {"target", integers({subject_rows}, "classes", classes, 5)}};
  return subject("classifier", model, std::move(data));
}

Subject ranking_subject() { return ranking_subject(false); }

Subject ranking_subject(bool by_rows, int64_t users) {
  constexpr int64_t items = 30, each = 5;
  const auto model = [by_rows, users] {
    Schema schema;
    schema.fields["user"] = {{}, at::kLong, users};
    schema.fields["item"] = {{each}, at::kLong, items};
    schema.fields["target"] = {{each}, at::kFloat, 0};
    return make_ncf(
        Options(Json{
            {"gmf_dim", 3}, {"mlp_dim", 4}, {"hidden", {6, 5}}, {"dropout", 0.1}, {"rows", by_rows}, {"top_k", {2}}}),
        schema);
  };
  Batch data;
  data.rows = subject_rows;
  at::Tensor target = at::zeros({subject_rows, each}, at::kDouble);
  target.select(1, 0).fill_(1);
  data.tensors = {{"user", integers({subject_rows}, "users", users, 5)},
                  {"item", integers({subject_rows, each}, "items", items, 5)},
                  {"target", target},
                  {"weight", normal({subject_rows}, "weight", 5).abs()}};
  Subject ranking = subject("ranking", model, std::move(data));
  ranking.loss = make_bce(Options());
  return ranking;
}

Subject gpt_of(const GptSizes& sizes) {
  constexpr int64_t length = 6;
  const int64_t vocabulary = sizes.vocabulary;
  const auto model = [sizes] {
    Schema schema;
    schema.fields["tokens"] = schema.fields["target"] = {{length}, at::kLong, sizes.vocabulary};
    return make_gpt(Options(Json{{"layers", 2},
                                 {"heads", sizes.heads},
                                 {"dim", sizes.dim},
                                 {"mlp_ratio", 2},
                                 {"mlp_dim", nullptr},
                                 {"activation", "gelu"},
                                 {"positions", "learned"},
                                 {"rotary_base", 10000.0},
                                 {"tied", sizes.tied},
                                 {"rows", sizes.rows},
                                 {"dropout", 0.1},
                                 {"attention_dropout", 0.2},
                                 {"bias", true},
                                 {"norm_eps", 1e-5}}),
                    schema);
  };
  Batch data;
  data.rows = subject_rows;
  data.tensors = {{"tokens", integers({subject_rows, length}, "tokens", vocabulary, 5)},
                  {"target", integers({subject_rows, length}, "targets", vocabulary, 5)}};
  Subject made = subject("gpt", model, std::move(data));
  made.section = convoy::str("{name: gpt, layers: 2, heads: ", sizes.heads, ", dim: ", sizes.dim,
                             ", mlp_ratio: 2, dropout: 0.1, attention_dropout: 0.2}");
  return made;
}

Subject gpt_subject() { return gpt_of({}); }

Subject llama_subject() {
  constexpr int64_t length = 6, vocabulary = 12;
  const auto model = [] {
    Schema schema;
    schema.fields["tokens"] = schema.fields["target"] = {{length}, at::kLong, vocabulary};
    return make_llama(Options(Json{{"layers", 2},
                                   {"heads", 4},
                                   {"kv_heads", 2},
                                   {"dim", 16},
                                   {"mlp_dim", 24},
                                   {"rotary_base", 100.0},
                                   {"tied", false},
                                   {"rows", false},
                                   {"dropout", 0.1},
                                   {"attention_dropout", 0.2},
                                   {"norm_eps", 1e-5}}),
                      schema);
  };
  Batch data;
  data.rows = subject_rows;
  data.tensors = {{"tokens", integers({subject_rows, length}, "tokens", vocabulary, 5)},
                  {"target", integers({subject_rows, length}, "targets", vocabulary, 5)}};
  Subject made = subject("llama", model, std::move(data));
  made.section =
      "{name: llama, layers: 2, heads: 4, kv_heads: 2, dim: 16, mlp_dim: 24, dropout: 0.1, "
      "attention_dropout: 0.2}";
  return made;
}

Subject convnet_subject() {
  constexpr int64_t classes = 5;
  const auto model = [] {
    Schema schema;
    schema.fields["features"] = {{2, 8, 8}, at::kFloat, 0};
    schema.fields["target"] = {{}, at::kLong, classes};
    return make_convnet(
        Options(Json{{"channels", {4, 6}}, {"kernel", 3}, {"batch_norm", true}, {"hidden", 10}, {"dropout", 0.2}}),
        schema);
  };
  Batch data;
  data.rows = subject_rows;
  data.tensors = {{"features", normal({subject_rows, 2, 8, 8}, "features", 5)},
                  {"target", integers({subject_rows}, "classes", classes, 5)}};
  return subject("convnet", model, std::move(data));
}

Subject ncf_subject() {
  constexpr int64_t users = 20, items = 30, candidates = 5, contexts = 3, user_features = 1, item_features = 2;
  const auto model = [] {
    Schema schema;
    schema.fields["user"] = {{}, at::kLong, users};
    schema.fields["item"] = {{candidates}, at::kLong, items};
    schema.fields["target"] = {{candidates}, at::kFloat, 0};
    schema.fields["context"] = {{contexts}, at::kFloat, 0};
    schema.fields["user_features"] = {{user_features}, at::kFloat, 0};
    schema.fields["item_features"] = {{candidates, item_features}, at::kFloat, 0};
    return make_ncf(
        Options(
            Json{{"gmf_dim", 4}, {"mlp_dim", 4}, {"hidden", {8, 6}}, {"dropout", 0.2}, {"top_k", Json::array({2})}}),
        schema);
  };
  Batch data;
  data.rows = subject_rows;
  at::Tensor target = at::zeros({subject_rows, candidates}, at::kDouble);
  target.select(1, 0).fill_(1);
  data.tensors = {{"user", integers({subject_rows}, "user", users, 5)},
                  {"item", integers({subject_rows, candidates}, "item", items, 5)},
                  {"target", target},
                  {"context", normal({subject_rows, contexts}, "context", 5)},
                  {"user_features", normal({subject_rows, user_features}, "user features", 5)},
                  {"item_features", normal({subject_rows, candidates, item_features}, "item features", 5)},
                  {"weight", normal({subject_rows}, "weight", 5).abs()}};
  return {"ncf", model, make_bce(Options()), std::move(data)};
}

}  // namespace convoy::testing
