//! Arithmetic, conversions and moves, by bits.

use super::run;

const NAN: u32 = 0x7fff_ffff;

/// The result of an instruction on `%r2` and `%r3` (or `%f2` and `%f3`, the same bits) into `%r4`.
fn two(instruction: &str, a: u32, b: u32) -> u32 {
    let body = format!(
        "ld.global.u32 %r2, [%rd1]; ld.global.u32 %r3, [%rd1+4]; mov.b32 %f2, %r2;\n\
         mov.b32 %f3, %r3;\n{instruction}\nst.global.u32 [%rd1+8], %r4;"
    );
    let mut data = [a, b, 0];
    run(&body, 1, &mut data).expect(instruction);
    data[2]
}

/// Of floats.
fn floats(name: &str, a: f32, b: f32) -> u32 {
    let one = format!("{name} %f4, %f2, %f3; mov.b32 %r4, %f4;");
    two(&one, a.to_bits(), b.to_bits())
}

#[test]
fn floats_round_once_keep_subnormals_and_know_one_nan() {
    assert_eq!(floats("add.rn.f32", 1.0, f32::EPSILON / 2.0), 1.0_f32.to_bits());
    assert_eq!(floats("mul.rn.f32", 1e-30, 1e-10), (1e-30_f32 * 1e-10).to_bits());
    assert_eq!(floats("mul.rn.ftz.f32", 1e-30, -1e-10), (-0.0_f32).to_bits());
    assert_eq!(floats("sub.rn.f32", f32::INFINITY, f32::INFINITY), NAN);
    assert_eq!(floats("add.rn.f32", f32::from_bits(0xffc1_2345), 1.0), NAN);
    assert_eq!(floats("div.rn.f32", 0.0, 0.0), NAN);
    assert_eq!(floats("max.f32", f32::NAN, -3.0), (-3.0_f32).to_bits());
    assert_eq!(floats("min.f32", 2.0, f32::NAN), 2.0_f32.to_bits());
    assert_eq!(floats("max.f32", -0.0, 0.0), 0);
    assert_eq!(floats("min.f32", 0.0, -0.0), 0x8000_0000);
    assert_eq!(floats("add.rz.f32", 1.0, 0.75 * f32::EPSILON), 1.0_f32.to_bits());
    assert_eq!(floats("add.rn.f32", 1.0, 0.75 * f32::EPSILON), 1.0_f32.to_bits() + 1);
    assert_eq!(floats("add.rz.f32", -1.0, -0.75 * f32::EPSILON), (-1.0_f32).to_bits());
    assert_eq!(floats("add.rz.f32", f32::MAX, f32::MAX), f32::MAX.to_bits());
    assert_eq!(floats("add.rz.f32", 1.5, 0.25), 1.75_f32.to_bits());
    assert_eq!(floats("copysign.f32", -1.0, 3.0), (-3.0_f32).to_bits());
    let (a, b) = (1.0 + f32::EPSILON, 1.0 - f32::EPSILON);
    let fused = two(
        "neg.f32 %f5, %f2; mul.rn.f32 %f6, %f2, %f3; neg.f32 %f6, %f6;\n\
         fma.rn.f32 %f4, %f2, %f3, %f6; mov.b32 %r4, %f4;",
        a.to_bits(),
        b.to_bits(),
    );
    assert_eq!(fused, a.mul_add(b, -(a * b)).to_bits());
    assert_ne!(fused, 0);
}

#[test]
fn a_product_is_rounded_before_it_is_flushed() {
    let product = |a, b| two("mul.rn.ftz.f32 %f4, %f2, %f3; mov.b32 %r4, %f4;", a, b);
    // Just below the least normal number: nearer to it than to the one before, and farther.
    assert_eq!(product(0x0080_0001, 0x3f7f_fffe), 0x0080_0000);
    assert_eq!(product(0x0080_1ef0, 0x3f7f_c22e), 0);
    let fused = "mov.f32 %f5, 0f80000000; fma.rn.ftz.f32 %f4, %f2, %f3, %f5; mov.b32 %r4, %f4;";
    assert_eq!(two(fused, 0x8080_1ef0, 0x3f7f_c22e), 0x8000_0000);
}

#[test]
fn a_nan_that_is_only_carried_keeps_its_bits() {
    let carried = two("selp.f32 %f4, %f2, %f3, %p1; mov.b32 %r4, %f3;", 0, 0xffc1_2345);
    assert_eq!(carried, 0xffc1_2345);
}

#[test]
fn numbers_convert_held_in_range_and_to_even() {
    let rni = |x: f32| two("cvt.rni.s32.f32 %r4, %f2;", x.to_bits(), 0) as i32;
    let rzi = |x: f32| two("cvt.rzi.s32.f32 %r4, %f2;", x.to_bits(), 0) as i32;
    assert_eq!([rni(2.5), rni(3.5), rni(-0.5), rni(f32::NAN)], [2, 4, 0, 0]);
    assert_eq!([rzi(2.9), rzi(-2.9), rzi(3e9), rzi(-3e9)], [2, -2, i32::MAX, i32::MIN]);
    let half = |bits: u32| {
        two("{.reg .b16 h; cvt.u16.u32 h, %r2; cvt.f32.f16 %f4, h;} mov.b32 %r4, %f4;", bits, 0)
    };
    assert_eq!(half(0x3c01), 0x3f80_2000);
    assert_eq!(half(0x8001), (-(2.0_f32.powi(-24))).to_bits());
    assert_eq!(half(0x7c00), f32::INFINITY.to_bits());
    let back = |x: f32| {
        let one = "{.reg .b16 h; cvt.rn.f16.f32 h, %f2; cvt.u32.u16 %r4, h;}";
        two(one, x.to_bits(), 0)
    };
    assert_eq!([back(65519.0), back(65520.0), back(1.0)], [0x7bff, 0x7c00, 0x3c00]);
    assert_eq!([back(2.0_f32.powi(-24) * 1.5), back(2.0_f32.powi(-25))], [2, 0]);
    assert_eq!(two("cvt.s32.s8 %r4, %r2;", 0x1234_5680, 0), 0xffff_ff80);
}

#[test]
fn integers_do_as_ptx_says() {
    assert_eq!(two("shl.b32 %r4, %r2, %r3;", 1, 32), 0);
    assert_eq!(two("shr.s32 %r4, %r2, %r3;", 0x8000_0000, 40), u32::MAX);
    assert_eq!(two("shr.u32 %r4, %r2, 31;", 0x8000_0000, 0), 1);
    assert_eq!(two("prmt.b32 %r4, %r2, %r3, 0x7610;", 0x4433_2211, 0x8877_6655), 0x8877_2211);
    assert_eq!(two("prmt.b32 %r4, %r2, %r3, 0xf8;", 0x0000_0080, 0x8000_0000), 0x8080_ffff);
    assert_eq!(two("bfi.b32 %r4, %r2, %r3, 8, 4;", 0xff, 0), 0xf00);
    assert_eq!(two("bfind.shiftamt.u32 %r4, %r2;", 0x0010_0000, 0), 11);
    assert_eq!(two("bfind.shiftamt.u32 %r4, %r2;", 0, 0), u32::MAX);
    assert_eq!(two("brev.b32 %r4, %r2;", 1, 0), 0x8000_0000);
    assert_eq!(two("mul.hi.s32 %r4, %r2, %r3;", (-3_i32) as u32, 1 << 31), 1);
    assert_eq!(two("div.s32 %r4, %r2, %r3;", (-7_i32) as u32, 2), (-3_i32) as u32);
    assert_eq!(two("rem.s32 %r4, %r2, %r3;", (-7_i32) as u32, 2), (-1_i32) as u32);
    let compared = "setp.lt.s32 %p1, %r2, %r3; selp.u32 %r4, 7, 9, %p1;";
    assert_eq!(two(compared, u32::MAX, 0), 7);
    assert_eq!(two("setp.lt.u32 %p1, %r2, %r3; selp.u32 %r4, 7, 9, %p1;", u32::MAX, 0), 9);
    let unordered = "setp.nan.f32 %p1, %f2, %f3; selp.u32 %r4, 7, 9, %p1;";
    assert_eq!([two(unordered, NAN, 0), two(unordered, 0, 0)], [7, 9]);
}
