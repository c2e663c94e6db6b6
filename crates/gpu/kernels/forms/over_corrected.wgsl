// A quotient of positive numbers, corrected by what an fma says that it leaves.
fn over(a: f32, b: f32) -> f32 {
    var q = a / b;
    for (var i = 0; i < 4; i++) {
        let above = bitcast<f32>(bitcast<u32>(q) + 1u);
        let below = bitcast<f32>(bitcast<u32>(q) - 1u);
        let rest = fused(-q, b, a);
        if rest > b * ((above - q) * 0.5) {
            q = above;
        } else if rest < b * ((below - q) * 0.5) {
            q = below;
        }
    }
    return q;
}
