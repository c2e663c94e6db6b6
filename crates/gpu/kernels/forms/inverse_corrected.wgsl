// What is no positive number, or too large to matter, is the device's.
fn inverse(x: f32) -> f32 {
    if x > 0.0 && x < 0x1p100f {
        return over(1.0, x);
    }
    return 1.0 / x;
}
