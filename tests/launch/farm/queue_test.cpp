// Order of a farm's queue, allocation and preemption.
#include "launch/farm/schedule/queue.h"

#include <gmock/gmock.h>

namespace convoy {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

Inventory cores(int count, int hosts = 1) {
  Inventory inventory;
  for (int host = 0; host < hosts; ++host)
    for (int core = 0; core < count; ++core) inventory.slots.push_back({host, {core}, 1});
  return inventory;
}

ResourceRequest wide(int cores) {
  ResourceRequest request;
  request.cores = cores;
  return request;
}

ResourceRequest urgent(int64_t priority, bool preempt = false, int cores = 1) {
  ResourceRequest request = wide(cores);
  request.priority = priority;
  request.preempt = preempt;
  return request;
}

// Jobs that start now, in their order.
std::vector<int> started(Queue& queue, double now = 0) {
  std::vector<int> jobs;
  while (const auto allocation = queue.next(now)) jobs.push_back(allocation->job);
  return jobs;
}

TEST(FarmQueue, KeepsTheOrderOfArrival) {
  Queue queue(cores(2), 0);
  for (int job = 0; job < 4; ++job) queue.add(job, {});
  EXPECT_THAT(started(queue), ElementsAre(0, 1));
  queue.ended(1);
  EXPECT_THAT(started(queue), ElementsAre(2));
  EXPECT_EQ(queue.running(), 2u);
  EXPECT_EQ(queue.waiting(), 1u);
}

TEST(FarmQueue, SortsByPriorityThenByEstimate) {
  Queue queue(cores(1), 0);
  queue.add(0, {});
  ResourceRequest longest, shorter;
  longest.estimate = 100;
  shorter.estimate = 10;
  queue.add(1, shorter);
  queue.add(2, longest);
  queue.add(3, urgent(5));
  std::vector<int> order;
  for (int i = 0; i < 4; ++i) {
    const auto allocation = queue.next(0);
    ASSERT_TRUE(allocation);
    order.push_back(allocation->job);
    queue.ended(allocation->job);
  }
  EXPECT_THAT(order, ElementsAre(3, 2, 1, 0));
}

TEST(FarmQueue, RespectsMaxParallel) {
  Queue queue(cores(8), 3);
  for (int job = 0; job < 8; ++job) queue.add(job, {});
  EXPECT_EQ(started(queue).size(), 3u);
}

TEST(FarmQueue, AllocatesSlotsOfOneHost) {
  Queue queue(cores(2, 2), 0);
  queue.add(0, {});
  queue.add(1, wide(2));
  EXPECT_THAT(started(queue), ElementsAre(0, 1));
  queue.add(2, wide(2));
  EXPECT_THAT(started(queue), IsEmpty()) << "one core is free on the first host, and two hosts are no gang's";
  EXPECT_FALSE(queue.possible(wide(3)));
}

TEST(FarmQueue, ReservesSlotsForALargeRequest) {
  Queue queue(cores(2), 0);
  queue.add(0, {});
  queue.add(1, {});
  EXPECT_THAT(started(queue), ElementsAre(0, 1));
  queue.add(2, wide(2));
  queue.add(3, {});
  queue.ended(0);
  EXPECT_THAT(started(queue), IsEmpty()) << "the free core is kept for the gang";
  queue.ended(1);
  EXPECT_THAT(started(queue), ElementsAre(2));
  queue.ended(2);
  EXPECT_THAT(started(queue), ElementsAre(3));
}

TEST(FarmQueue, LetsOthersPassWithoutDelay) {
  Queue queue(cores(3), 0);
  queue.add(0, {});
  EXPECT_THAT(started(queue), ElementsAre(0));
  ResourceRequest named = wide(1);
  named.core_list = {0};
  queue.add(1, named);
  queue.add(2, {});
  queue.add(3, {});
  EXPECT_THAT(started(queue), ElementsAre(2, 3)) << "1 waits for core 0, which 0 has";
  queue.ended(0);
  EXPECT_THAT(started(queue), ElementsAre(1));
}

TEST(FarmQueue, AllocatesListedCoresAndShares) {
  Queue queue(cores(2), 0);
  ResourceRequest half;
  half.core_list = {1};
  half.share = 0.5;
  for (int job = 0; job < 3; ++job) queue.add(job, half);
  const auto first = queue.next(0), second = queue.next(0);
  ASSERT_TRUE(first && second);
  EXPECT_THAT(first->slots, ElementsAre(1));
  EXPECT_THAT(second->slots, ElementsAre(1));
  EXPECT_FALSE(queue.next(0)) << "two halves are all of it";
}

TEST(FarmQueue, PacksShares) {
  Queue queue(cores(2), 0);
  ResourceRequest half;
  half.share = 0.5;
  queue.add(0, half);
  queue.add(1, half);
  queue.add(2, {});
  EXPECT_THAT(started(queue), ElementsAre(0, 1, 2));
}

TEST(FarmQueue, AllocatesGpusOfTheSameHost) {
  Inventory inventory = cores(2, 2);
  inventory.gpus = {{1, 0}, {1, 1}};
  Queue queue(inventory, 0);
  ResourceRequest request;
  request.gpus = 1;
  for (int job = 0; job < 3; ++job) queue.add(job, request);
  const auto first = queue.next(0);
  ASSERT_TRUE(first);
  EXPECT_EQ(first->host, 1);
  EXPECT_THAT(first->gpus, ElementsAre(0));
  EXPECT_TRUE(queue.next(0));
  EXPECT_FALSE(queue.next(0));
  request.gpus = 3;
  EXPECT_FALSE(queue.possible(request));
}

TEST(FarmQueue, WaitsUntilNotBefore) {
  Queue queue(cores(1), 0);
  queue.add(0, {}, 10);
  EXPECT_FALSE(queue.next(9));
  EXPECT_EQ(queue.next_time(9), 10);
  EXPECT_TRUE(queue.next(10));
  EXPECT_EQ(queue.next_time(10), std::numeric_limits<double>::infinity());
}

TEST(FarmQueue, PreemptsOnlyLowerPriorities) {
  Queue queue(cores(2), 0);
  queue.add(0, urgent(1));
  queue.add(1, urgent(2));
  EXPECT_EQ(started(queue).size(), 2u);
  queue.add(2, urgent(5));
  EXPECT_THAT(queue.preempt(0), IsEmpty()) << "it is more urgent, and may not ask for it";
  queue.drop(2);
  queue.add(3, urgent(1, true));
  EXPECT_THAT(queue.preempt(0), IsEmpty()) << "none is less urgent";
  queue.drop(3);
  queue.add(4, urgent(5, true));
  EXPECT_THAT(queue.preempt(0), ElementsAre(0)) << "the least urgent is enough";
  EXPECT_THAT(queue.preempt(0), IsEmpty()) << "reported once";
  queue.ended(0);
  queue.add(0, urgent(1));
  EXPECT_THAT(started(queue), ElementsAre(4));
}

TEST(FarmQueue, PreemptsNothingForAJobThatStaysBlocked) {
  Queue queue(cores(2), 0);
  queue.add(0, urgent(1));
  queue.add(1, urgent(1));
  EXPECT_EQ(started(queue).size(), 2u);
  queue.add(2, urgent(50, false, 2));
  queue.add(3, urgent(10, true));
  EXPECT_THAT(queue.preempt(0), IsEmpty()) << "both cores are kept for the gang";
  queue.drop(2);
  EXPECT_THAT(queue.preempt(0), ElementsAre(1));
}

TEST(FarmQueue, ABlockedPreemptingJobReservesNothingFromLowerPriorities) {
  Queue queue(cores(2), 0);
  queue.add(0, urgent(20));
  queue.add(1, urgent(0));
  EXPECT_THAT(started(queue), ElementsAre(0, 1));
  queue.add(2, urgent(10, true, 2));
  queue.add(3, urgent(10, true));
  queue.add(4, urgent(5, true));
  EXPECT_THAT(queue.preempt(0), ElementsAre(1)) << "for 4: what 2 waits for, its equal 3 may not take";
  queue.ended(1);
  queue.add(1, urgent(0));
  EXPECT_THAT(started(queue), ElementsAre(4));
  EXPECT_THAT(queue.preempt(0), IsEmpty());
  queue.ended(0);
  EXPECT_THAT(started(queue), IsEmpty()) << "now the core is kept for 2";
  EXPECT_THAT(queue.preempt(0), ElementsAre(4));
  queue.ended(4);
  queue.add(4, urgent(5, true));
  EXPECT_THAT(started(queue), ElementsAre(2)) << "however many small ones came later";
  queue.ended(2);
  EXPECT_THAT(started(queue), ElementsAre(3, 4));
}

TEST(FarmQueue, PreemptsForSeveralJobsAtOnce) {
  Queue queue(cores(2), 0);
  queue.add(0, {});
  queue.add(1, {});
  EXPECT_EQ(started(queue).size(), 2u);
  queue.add(2, urgent(10, true));
  queue.add(3, urgent(5, true));
  EXPECT_THAT(queue.preempt(0), UnorderedElementsAre(0, 1));
}

TEST(FarmQueue, PreemptsNothingForReservedSlots) {
  Queue queue(cores(4), 1);
  queue.add(0, {});
  EXPECT_EQ(started(queue).size(), 1u);
  queue.add(1, urgent(50));
  queue.add(2, urgent(10, true));
  EXPECT_THAT(queue.preempt(0), IsEmpty());
}

TEST(FarmQueue, PreemptsAsManyAsNeeded) {
  Queue queue(cores(4), 0);
  for (int job = 0; job < 4; ++job) queue.add(job, {});
  EXPECT_EQ(started(queue).size(), 4u);
  queue.add(9, urgent(5, true, 2));
  EXPECT_THAT(queue.preempt(0), UnorderedElementsAre(2, 3)) << "the latest ones have made the least progress";
}

TEST(FarmQueue, PreemptsOneAtMaxParallel) {
  Queue queue(cores(4), 1);
  queue.add(0, {});
  EXPECT_EQ(started(queue).size(), 1u);
  queue.add(1, urgent(5, true));
  EXPECT_THAT(queue.preempt(0), ElementsAre(0));
}

TEST(FarmQueue, SparesJobsOnOtherSlots) {
  Queue queue(cores(2), 0);
  ResourceRequest first = wide(1), second = wide(1), wanted = urgent(5, true);
  first.core_list = {0};
  second.core_list = {1};
  wanted.core_list = {0};
  queue.add(0, first);
  queue.add(1, second);
  EXPECT_EQ(started(queue).size(), 2u);
  queue.add(2, wanted);
  EXPECT_THAT(queue.preempt(0), ElementsAre(0)) << "1 started last, and blocks no other";
}

}  // namespace
}  // namespace convoy
