// The device's own fma, where the probe found it fused.
fn fused(a: f32, b: f32, c: f32) -> f32 {
    return fma(a, b, c);
}
