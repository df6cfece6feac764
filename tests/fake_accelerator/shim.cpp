// The parts that torch's CPU build lacks for tracing whole steps on fake tensors of the device "cuda": a device guard,
// hooks, and the choice of an attention kernel. Nothing here computes.
#include <ATen/SDPBackend.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <ATen/native/transformers/attention.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

namespace {

const c10::Device kFirst(c10::DeviceType::CUDA, 0);

struct Guard : c10::impl::NoOpDeviceGuardImpl<c10::DeviceType::CUDA> {
  c10::Device exchangeDevice(c10::Device) const override { return kFirst; }
  c10::Device getDevice() const override { return kFirst; }
  c10::Stream getStream(c10::Device) const noexcept override { return c10::Stream(c10::Stream::DEFAULT, kFirst); }
  c10::Stream exchangeStream(c10::Stream) const noexcept override { return getStream(kFirst); }
};
c10::impl::DeviceGuardImplRegistrar registered(c10::DeviceType::CUDA, new Guard());

// Flash attention takes no mask, and no float32.
int64_t choose_attention(const at::Tensor& query, const at::Tensor&, const at::Tensor&,
                         const std::optional<at::Tensor>& mask, double, bool, std::optional<double>, bool) {
  const bool is_half = query.scalar_type() == at::kBFloat16 || query.scalar_type() == at::kHalf;
  const auto kind = query.scalar_type() == at::kDouble ? at::SDPBackend::math
      : is_half && !mask.has_value()                   ? at::SDPBackend::flash_attention
                                                       : at::SDPBackend::efficient_attention;
  return static_cast<int64_t>(kind);
}
const bool chosen = (at::native::_fused_sdp_choice_stub.set_cuda_dispatch_ptr(&choose_attention), true);

}  // namespace

namespace at {

struct CUDAHooks : CUDAHooksInterface {
  explicit CUDAHooks(CUDAHooksArgs) {}
  void init() const override {}
  bool hasCUDA() const override { return true; }
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(DeviceIndex) const override { return true; }
  DeviceIndex current_device() const override { return 0; }
  DeviceIndex getCurrentDevice() const override { return 0; }
  DeviceIndex deviceCount() const override { return 1; }
};
REGISTER_CUDA_HOOKS(CUDAHooks);

}  // namespace at
