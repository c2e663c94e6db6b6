// An exact fma in integers, for devices whose fma is not fused and that have no f64.

// A 64-bit number, high word first.
fn shifted_right(x: vec2<u32>, count: u32) -> vec2<u32> {
    // What falls out stays as the lowest bit.
    if count == 0u {
        return x;
    }
    if count < 32u {
        let lost = select(0u, 1u, (x.y << (32u - count)) != 0u);
        return vec2(x.x >> count, (x.y >> count) | (x.x << (32u - count)) | lost);
    }
    if count == 32u {
        return vec2(0u, x.x | select(0u, 1u, x.y != 0u));
    }
    if count < 64u {
        let lost = select(0u, 1u, ((x.x << (64u - count)) | x.y) != 0u);
        return vec2(0u, (x.x >> (count - 32u)) | lost);
    }
    return vec2(0u, select(0u, 1u, (x.x | x.y) != 0u));
}

fn shifted_left(x: vec2<u32>, count: u32) -> vec2<u32> {
    if count == 0u {
        return x;
    }
    if count < 32u {
        return vec2((x.x << count) | (x.y >> (32u - count)), x.y << count);
    }
    return vec2(x.y << (count - 32u), 0u);
}

fn fused(a: f32, b: f32, c: f32) -> f32 {
    let ua = bitcast<u32>(a);
    let ub = bitcast<u32>(b);
    let uc = bitcast<u32>(c);
    let ea = (ua >> 23u) & 255u;
    let eb = (ub >> 23u) & 255u;
    let ec = (uc >> 23u) & 255u;
    // One rounding at most, or no number.
    if ea == 0u || eb == 0u || ec == 0u || max(ea, max(eb, ec)) == 255u {
        return a * b + c;
    }
    let ma = (ua & 0x7fffffu) | 0x800000u;
    let mb = (ub & 0x7fffffu) | 0x800000u;
    let mc = (uc & 0x7fffffu) | 0x800000u;
    // The product of 48 bits, by halves of 12.
    let a1 = ma >> 12u;
    let a0 = ma & 0xfffu;
    let b1 = mb >> 12u;
    let b0 = mb & 0xfffu;
    let middle = a1 * b0 + a0 * b1;
    let low = a0 * b0 + (middle << 12u);
    let carry = select(0u, 1u, low < (middle << 12u));
    let top = a1 * b1;
    let low2 = low + (top << 24u);
    let carry2 = select(0u, 1u, low2 < low);
    let high = (top >> 8u) + (middle >> 20u) + carry + carry2;
    var product = shifted_left(vec2(high, low2), 14u);
    var addend = vec2(mc << 6u, 0u);
    var exponent = i32(ea) + i32(eb) - 314;
    let other = i32(ec) - 188;
    if exponent >= other {
        addend = shifted_right(addend, u32(exponent - other));
    } else {
        product = shifted_right(product, u32(other - exponent));
        exponent = other;
    }
    var sign = (ua ^ ub) & 0x80000000u;
    var sum: vec2<u32>;
    if sign == (uc & 0x80000000u) {
        let y = product.y + addend.y;
        sum = vec2(product.x + addend.x + select(0u, 1u, y < addend.y), y);
    } else {
        let less = product.x < addend.x || (product.x == addend.x && product.y < addend.y);
        let larger = select(product, addend, less);
        let smaller = select(addend, product, less);
        sum = vec2(larger.x - smaller.x - select(0u, 1u, larger.y < smaller.y),
            larger.y - smaller.y);
        sign = select(sign, uc & 0x80000000u, less);
    }
    if (sum.x | sum.y) == 0u {
        return 0.0;
    }
    let zeros = select(countLeadingZeros(sum.x), 32u + countLeadingZeros(sum.y), sum.x == 0u);
    sum = shifted_left(sum, zeros);
    let rest = sum.x & 0xffu;
    var mantissa = sum.x >> 8u;
    let up = rest > 0x80u || (rest == 0x80u && (sum.y != 0u || (mantissa & 1u) != 0u));
    mantissa += select(0u, 1u, up);
    // A mantissa of 2^24 carries into the exponent by itself.
    let biased = exponent + 63 - i32(zeros) + 127;
    if biased <= 0 {
        return 0.0;
    }
    let bits = (u32(biased - 1) << 23u) + mantissa;
    return bitcast<f32>(sign | min(bits, 0x7f800000u));
}
