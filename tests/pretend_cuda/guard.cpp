// What a torch built for CPUs lacks of a CUDA device: a guard, which autograd asks for the device of a thread, and the
// hooks, which torch asks once whether there is a device at all.
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

using c10::Device, c10::DeviceIndex, c10::DeviceType, c10::Stream;

static thread_local DeviceIndex current = 0;  // as in CUDA, a new thread begins with the first device
static DeviceIndex devices = 1;

extern "C" {
int pretend_current() { return current; }
void pretend_set_current(int index) { current = static_cast<DeviceIndex>(index); }
void pretend_set_devices(int count) { devices = static_cast<DeviceIndex>(count); }
}

static DeviceIndex exchange(DeviceIndex index) {
  DeviceIndex before = current;
  if (index >= 0) current = index;
  return before;
}

struct Guard final : c10::impl::NoOpDeviceGuardImpl<DeviceType::CUDA> {
  static Stream of(Device device) { return Stream(Stream::DEFAULT, device); }
  Device exchangeDevice(Device device) const override { return {DeviceType::CUDA, exchange(device.index())}; }
  Device getDevice() const override { return {DeviceType::CUDA, current}; }
  void setDevice(Device device) const override { exchange(device.index()); }
  void uncheckedSetDevice(Device device) const noexcept override { exchange(device.index()); }
  DeviceIndex deviceCount() const noexcept override { return devices; }
  Stream getStream(Device device) const noexcept override { return of(device); }
  Stream getNewStream(Device device, int = 0) const override { return of(device); }
  Stream exchangeStream(Stream stream) const noexcept override { return stream; }
  void record(void**, const Stream&, const DeviceIndex, const c10::EventFlag) const override {}
  void block(void*, const Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
};

struct CUDAHooks final : at::CUDAHooksInterface {
  CUDAHooks(at::CUDAHooksArgs) {}
  void init() const override {}
  bool hasCUDA() const override { return true; }
  bool hasCUDART() const override { return true; }
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(DeviceIndex) const override { return true; }
  DeviceIndex deviceCount() const override { return devices; }
  int getNumGPUs() const override { return devices; }
  DeviceIndex current_device() const override { return current; }
  DeviceIndex getCurrentDevice() const override { return current; }
  void setCurrentDevice(DeviceIndex index) const override { exchange(index); }
  DeviceIndex exchangeDevice(DeviceIndex index) const override { return exchange(index); }
  DeviceIndex maybeExchangeDevice(DeviceIndex index) const override { return exchange(index); }
  c10::Allocator* getPinnedMemoryAllocator() const override { return c10::GetCPUAllocator(); }
};

namespace at {
C10_REGISTER_CLASS(CUDAHooksRegistry, CUDAHooks, CUDAHooks)
}
static Guard guard;
static const bool registered = (c10::impl::registerDeviceGuard(DeviceType::CUDA, &guard), true);
