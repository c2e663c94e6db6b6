fn root(x: f32) -> f32 {
    return sqrt(x);
}
