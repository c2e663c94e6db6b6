// A product that feeds a sum: the device leaves it alone.
fn whole(product: f32) -> f32 {
    return product;
}
