"""GPU MODE: its problem folders as definitions with workloads, and its `custom_kernel` files as solutions of them."""
