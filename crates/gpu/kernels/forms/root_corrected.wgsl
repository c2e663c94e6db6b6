// A square root, corrected by what an fma says that its square leaves.
fn root(x: f32) -> f32 {
    var y = sqrt(x);
    if !(x > 0x1p-120f && x < 0x1p120f) {
        return y;
    }
    for (var i = 0; i < 4; i++) {
        let above = bitcast<f32>(bitcast<u32>(y) + 1u);
        let below = bitcast<f32>(bitcast<u32>(y) - 1u);
        let rest = fused(-y, y, x);
        if fused(-y, above - y, rest) > 0.0 {
            y = above;
        } else if fused(y, y - below, rest) <= 0.0 {
            y = below;
        }
    }
    return y;
}
