"""A pretended CUDA device, for a torch that was built for CPUs: values are a CPU's, the rules are CUDA's.

A tensor on it is a `Pretended`: its `device` is cuda, and it holds a tensor of the CPU, by which each operation on it
is done, after the checks that a GPU would make. Autograd starts its own thread for the device, as it does on a GPU.
Threads of the program see the device too, and so do the processes that it starts.

What it raises, as CUDA does: tensors of two devices in one operation; a generator of the CPU for a tensor of the
device; `numpy()`; products of matrices of integers; operations that are not deterministic where determinism is asked
for; more memory than there is; waits under `torch.cuda.set_sync_debug_mode`. What it counts (`counting.recording`):
operations, waits with the line of the project that caused them, bytes over the bus, floating-point operations.

What it can't show, and takes a GPU: rounding, such as TF32's; kernels and their faults; races, since streams do not
overlap; what cuDNN chooses; NCCL; triton and what is compiled with it; the profiler; LSTM and GRU; speed. A generator
of the device is not refused for a tensor of the CPU.

How it is used. Torch asks once, while it is imported, whether there is a device: so it has to be there before.

    pytest          python -m pytest -p tests.pretend_cuda.plugin -m gpu tests/gpu
    other commands  subprocess.run(command, env=roads.environment(roads.Settings()))

`backing="meta"` computes shapes alone, and no values: for counting what a large model would do.
"""
