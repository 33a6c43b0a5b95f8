#include "core/training/length.h"

#include <algorithm>
#include <limits>

#include "core/data/catalogue/declared_schema.h"

namespace convoy {

MemberSample row_sample_of(const Sampling& sampling, const RunConfig& config) {
  return sampling.samples.empty() ? member_sample(config.data.options, config.seed) : sampling.samples.front();
}

int64_t rows_per_epoch(const Sampling& sampling, const RunConfig& config, int64_t rows) {
  return rows_drawn(row_sample_of(sampling, config), rows);
}

TrainingLength training_length(const TrainConfig& train, int64_t rows, int64_t data_degree) {
  TrainingLength length;
  length.global_rows = train.batch.per_rank ? train.batch.rows * data_degree : train.batch.rows;
  length.steps_per_epoch = rows <= 0 ? 0 : (rows - 1) / length.global_rows + 1;
  // A product that overflows becomes the largest number.
  constexpr int64_t most = std::numeric_limits<int64_t>::max();
  const int64_t epochs = train.epochs > 0 ? train.epochs : most;
  length.epoch_steps = length.steps_per_epoch > most / epochs ? most : epochs * length.steps_per_epoch;
  length.total_steps = train.max_steps > 0 ? std::min(length.epoch_steps, train.max_steps) : length.epoch_steps;
  return length;
}

bool due(const Interval& interval, int64_t steps_done, int64_t steps_per_epoch) {
  switch (interval.unit) {
    case Interval::Unit::never:
      return false;
    case Interval::Unit::steps:
      return steps_done % interval.every == 0;
    case Interval::Unit::epochs:
      return steps_done % (interval.every * steps_per_epoch) == 0;
  }
  return false;
}

bool reached(const Interval& position, int64_t steps_done, int64_t steps_per_epoch) {
  if (position.unit == Interval::Unit::never) return false;
  return steps_done / (position.unit == Interval::Unit::epochs ? steps_per_epoch : 1) >= position.every;
}

std::string length_note(const TrainConfig& train, const TrainingLength& length) {
  if (train.epochs <= 0 || train.max_steps <= 0) return "";
  if (length.epoch_steps == train.max_steps)
    return str("train.epochs, ", train.epochs, ", and train.max_steps both end this run after ",
               counted(train.max_steps, "step"));
  if (train.max_steps < length.epoch_steps)
    return str("train.max_steps ends this run after ", counted(train.max_steps, "step"), ", before train.epochs, ",
               train.epochs, ", which takes ", length.epoch_steps);
  return str("train.epochs, ", train.epochs, ", ends this run after ", counted(length.epoch_steps, "step"),
             ", before train.max_steps; for all ", train.max_steps, " steps type --set train.epochs=~");
}

}  // namespace convoy
