// An exact fma by f64: the product is exact, the sum is rounded to f64 and then to f32. The two
// roundings differ from one only where the f64 lies midway between two f32 and is not exact: then
// what it lost says to which side.
fn fused(a: f32, b: f32, c: f32) -> f32 {
    let product = f64(a) * f64(b);
    let addend = f64(c);
    let sum = product + addend;
    let shadow = sum - product;
    let lost = (product - (sum - shadow)) + (addend - shadow);
    let near = f32(sum);
    let rest = sum - f64(near);
    let far = f64(near) + (rest + rest);
    let midway = rest != 0.0lf && f64(f32(far)) == far;
    return select(near, f32(far), midway && lost * rest > 0.0lf);
}
