#include "files/bus_guard.hpp"

#include <csetjmp>
#include <csignal>
#include <cstdint>
#include <unistd.h>

namespace wdsbench::files {

namespace {

struct Guard {
  sigjmp_buf back;
  std::uintptr_t first = 0;
  std::uintptr_t size = 0; ///< 0: the thread guards nothing.
};

/// initial-exec: the handler may not allocate, which a lazily made thread-local would.
thread_local Guard *guard __attribute__((tls_model("initial-exec"))) = nullptr;

struct sigaction previous = {};
volatile sig_atomic_t handing_on = 0;
volatile std::uintptr_t handed_on = 0; ///< Address of the last fault that was not ours.

void die_by_default(int signal, const siginfo_t *info) {
  struct sigaction by_default = {};
  by_default.sa_handler = SIG_DFL;
  sigemptyset(&by_default.sa_mask);
  sigaction(signal, &by_default, nullptr);
  if (info->si_code <= 0) { // sent by somebody; a fault comes again when we return
    raise(signal);
  }
}

void on_bus_error(int signal, siginfo_t *info, void *context) {
  const auto address = reinterpret_cast<std::uintptr_t>(info->si_addr);
  const bool fault = info->si_code > 0;
  // A handler that was put before ours while this thread was reading (faulthandler) has had our
  // fault first; it puts us back and raises the signal again on this thread.
  const bool raised_again = info->si_code == SI_TKILL && info->si_pid == getpid();
  if (guard != nullptr && (raised_again || (fault && address - guard->first < guard->size))) {
    siglongjmp(guard->back, 1);
  }
  // Whoever handled it before may have put us back and raised it again, or returned without doing
  // anything (a faulthandler that is off), so that the same instruction faults for ever.
  if (handing_on != 0 || (fault && address == handed_on && address != 0)) {
    die_by_default(signal, info);
    return;
  }
  handing_on = 1;
  handed_on = fault ? address : 0;
  if ((previous.sa_flags & SA_SIGINFO) != 0) {
    previous.sa_sigaction(signal, info, context);
  } else if (previous.sa_handler != SIG_DFL && previous.sa_handler != SIG_IGN) {
    previous.sa_handler(signal);
  } else {
    die_by_default(signal, info);
  }
  handing_on = 0;
}

bool is_ours(const struct sigaction &action) {
  return (action.sa_flags & SA_SIGINFO) != 0 && action.sa_sigaction == on_bus_error;
}

} // namespace

void arm_bus_guard() {
  struct sigaction current = {};
  sigaction(SIGBUS, nullptr, &current);
  if (is_ours(current)) {
    return;
  }
  previous = current;
  struct sigaction ours = {};
  ours.sa_sigaction = on_bus_error;
  // NODEFER: the jump leaves the handler, so the signal must not stay blocked. ONSTACK: as
  // faulthandler does, where a thread has one.
  ours.sa_flags = SA_SIGINFO | SA_NODEFER | SA_ONSTACK;
  sigemptyset(&ours.sa_mask);
  sigaction(SIGBUS, &ours, nullptr);
}

void unblock_bus_errors() {
  sigset_t bus;
  sigemptyset(&bus);
  sigaddset(&bus, SIGBUS);
  pthread_sigmask(SIG_UNBLOCK, &bus, nullptr);
}

bool guarded(const void *first, std::size_t size, void (*work)(void *), void *context) {
  Guard here;
  here.first = reinterpret_cast<std::uintptr_t>(first);
  here.size = size;
  if (sigsetjmp(here.back, 0) != 0) {
    guard = nullptr;
    return false;
  }
  guard = &here;
  work(context);
  guard = nullptr;
  return true;
}

} // namespace wdsbench::files
