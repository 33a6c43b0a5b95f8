// The number of steps of a training, and the note about which setting ends it.
#include "core/training/length.h"

#include <gtest/gtest.h>

#include <limits>

namespace convoy {
namespace {

TEST(TrainingLength, CountsASmallerLastBatchAsAStep) {
  TrainConfig train;
  train.epochs = 3;
  train.batch.rows = 4;
  EXPECT_EQ(training_length(train, 10, 2).steps_per_epoch, 3);
  EXPECT_EQ(training_length(train, 10, 2).total_steps, 9);
  train.batch.per_rank = true;
  EXPECT_EQ(training_length(train, 10, 2).global_rows, 8);
  EXPECT_EQ(training_length(train, 10, 2).steps_per_epoch, 2);
  train.max_steps = 5;
  EXPECT_EQ(training_length(train, 10, 2).total_steps, 5);
  EXPECT_NE(length_note(train, training_length(train, 10, 2)).find("train.max_steps ends"), std::string::npos);
  train.max_steps = 50;
  EXPECT_NE(length_note(train, training_length(train, 10, 2)).find("train.epochs, 3, ends"), std::string::npos);
  train.max_steps = 6;
  EXPECT_EQ(length_note(train, training_length(train, 10, 2)),
            "train.epochs, 3, and train.max_steps both end this run after 6 steps");
  train.max_steps = 50;
  train.epochs = 0;
  EXPECT_EQ(training_length(train, 10, 2).total_steps, 50);
  EXPECT_EQ(length_note(train, training_length(train, 10, 2)), "");
  train.max_steps = 0;
  train.epochs = 100000000;
  const int64_t most = std::numeric_limits<int64_t>::max();
  EXPECT_EQ(training_length(train, most, 1).steps_per_epoch, (most - 1) / training_length(train, 1, 1).global_rows + 1);
  EXPECT_EQ(training_length(train, most, 1).total_steps, most);
}

}  // namespace
}  // namespace convoy
