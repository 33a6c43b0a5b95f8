// What an Injector puts around a rank's model, communicator and files. Each passes everything on, but for the one call that
// a fault is for.
#pragma once
#include "core/inject/injector.h"

namespace convoy {

ModelPtr injected_model(ModelPtr model, std::shared_ptr<Injector> injector);
CommunicatorPtr injected_communicator(CommunicatorPtr group, std::shared_ptr<Injector> injector);
// `files` and `injector` outlive it.
std::unique_ptr<FileSystem> injected_files(FileSystem& files, Injector& injector);

}  // namespace convoy
