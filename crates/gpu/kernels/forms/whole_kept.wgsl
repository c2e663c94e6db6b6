// A product that feeds a sum, kept from being contracted with it: no compiler knows that this
// changes no bit.
fn whole(product: f32) -> f32 {
    return bitcast<f32>(bitcast<u32>(product) ^ p.nothing);
}
