"""A worker's support for run-time compilers: their folders, faster first launches, and compilation ahead."""
