// The device's division, where the probe found it correctly rounded.
fn over(a: f32, b: f32) -> f32 {
    return a / b;
}
