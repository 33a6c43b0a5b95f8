#include "launch/rank/caught.h"

#include <c10/util/Exception.h>

#include <exception>
#include <filesystem>
#include <new>
#include <stdexcept>
#include <system_error>

#include "core/limits.h"

namespace convoy {

Caught caught(Failure unknown) {
  try {
    throw;
  } catch (const CommError& error) {
    const bool others = error.kind() == Failure::hang || error.kind() == Failure::disagreement ||
                        error.kind() == Failure::training;  // of which a group of ranks knows only that it happened
    return {error.kind(), error.what(), others ? std::optional<int>(error.rank()) : std::nullopt};
  } catch (const Error& error) {
    return {error.kind(), error.what()};
  } catch (const std::filesystem::filesystem_error& error) {
    return {Failure::io, error.what()};
  } catch (const std::bad_alloc&) {
    return {Failure::out_of_memory, no_memory_text()};
  } catch (const std::system_error& error) {
    if (error.code() == std::errc::resource_unavailable_try_again) return {Failure::out_of_memory, no_thread_text()};
    return {unknown, error.what()};
  } catch (const std::length_error& error) {
    return {Failure::out_of_memory,
            str("more than any memory holds was asked for (", error.what(), "); try smaller data or a smaller model")};
  } catch (const c10::OutOfMemoryError& error) {
    return {Failure::out_of_memory, str(error.what_without_backtrace(), "; try a smaller train.batch")};
  } catch (const c10::Error& error) {
    const std::string message = error.what_without_backtrace();
    // LibTorch's allocator for the CPU has no exception of its own.
    if (message.find("can't allocate memory") != std::string::npos)
      return {Failure::out_of_memory, str(no_memory_text(), ": ", message)};
    return {unknown, message};
  } catch (const std::exception& error) {
    return {unknown, error.what()};
  } catch (...) {
    return {unknown, "an exception that is no std::exception"};
  }
}

}  // namespace convoy
