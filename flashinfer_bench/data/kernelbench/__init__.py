"""KernelBench: its tasks as definitions with workloads, and its `ModelNew` files as solutions of them."""
