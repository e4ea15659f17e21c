"""Every routine at a small size: its arguments, as one would type them."""

SMALL = {
    "rmsnorm": "--batch_size 5 --hidden_size 96",
    "rmsnorm_quant": "--batch_size 8 --hidden_size 128 --scale 0.5",
    "fused_add_rmsnorm_quant": "--batch_size 8 --hidden_size 128 --out_dtype fp8_e5m2 --scale 2",
    "rmsnorm_fp4quant": "--batch_size 8 --hidden_size 128 --is_sf_swizzled_layout --use_global_scale",
    "add_rmsnorm_fp4quant": "--batch_size 8 --hidden_size 128 --out_dtype mxfp4",
}
"""Routine to its flags."""
