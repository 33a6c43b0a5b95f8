// The library of convoy: distributed training for programs with their own module, optimizer and training loop.
//
//   #include <convoy/convoy.h>
//
//   job.h        Job: this process as one rank
//   replicas.h   Replicas: the whole module on every rank
//   shards.h     Shards: module and optimizer divided between the ranks
//   run.h        Run: rows of each global batch, metrics, checkpoints, resuming
//   model_of.h   model_of: a model for convoy's own strategies, from torch modules
//   load.h       load: a trained model, for a program that serves it
//
// Two more headers: mpi.h for applications that call MPI themselves, and plugin.h for plugins of `convoy run`.
// Link convoy::convoy. docs/howto/own_program.md changes a plain LibTorch program step by step.
#pragma once
#include "convoy/job.h"
#include "convoy/load.h"
#include "convoy/model_of.h"
#include "convoy/replicas.h"
#include "convoy/run.h"
#include "convoy/shards.h"
