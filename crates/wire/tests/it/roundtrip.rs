//! Whatever is encoded decodes to itself, however the bytes arrive.

use arith::base::Round;
use proptest::prelude::*;
use wire::beat::Beat;
use wire::call::Call;
use wire::cancel::Cancel;
use wire::control::Message;
use wire::frame::{Frame, Kind, Reader, Writer};
use wire::hello::{Answer, Hello};
use wire::limit::PART_BYTES_MAX;
use wire::plan::Plan;
use wire::rows;
use wire::stop::Stop;
use wire::tally::Tally;

use crate::kind::{ROWS_BYTES_MAX, written};
use crate::random;

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_message_decodes_to_itself(
        hello in random::hello(),
        answer in random::answer(),
        message in random::message(),
        plan in random::plan(),
        stop in random::stop(),
        beat in random::beat(),
        cancel in random::cancel(),
        call in random::call(),
        tally in random::tally(),
    ) {
        prop_assert_eq!(Hello::decode(&hello.encode().unwrap()), Ok(hello));
        prop_assert_eq!(Answer::decode(&answer.encode().unwrap()), Ok(answer));
        prop_assert_eq!(Message::decode(&message.encode().unwrap()), Ok(message));
        let echo = Plan::decode(&plan.encode().unwrap()).unwrap();
        prop_assert!(echo.echoes(&plan));
        prop_assert_eq!(echo, plan);
        prop_assert_eq!(Stop::decode(&stop.encode()), Ok(stop));
        prop_assert_eq!(Beat::decode(&beat.encode()), Ok(beat));
        prop_assert_eq!(Cancel::decode(&cancel.encode()), Ok(cancel));
        prop_assert_eq!(Call::decode(&call.encode().unwrap()), Ok(call));
        prop_assert_eq!(Tally::decode(&tally.encode()), Ok(tally));
    }

    #[test]
    fn rows_keep_every_bit(bits in prop::collection::vec(any::<u32>(), 24)) {
        let values: Vec<f32> = bits.iter().map(|&bits| f32::from_bits(bits)).collect();
        let back = rows::decode(&rows::encode(&values), 4, 6).unwrap();
        let back: Vec<u32> = back.iter().map(|value| value.to_bits()).collect();
        prop_assert_eq!(back, bits);
    }

    #[test]
    fn frames_arrive_whole_whatever_the_pieces(
        frames in prop::collection::vec(random::frame(), 1..6),
        piece in 1usize..200,
    ) {
        let bytes: Vec<u8> = frames.iter().cloned().flat_map(written).collect();
        let mut reader = Reader::new();
        reader.set_rows_bytes_max(ROWS_BYTES_MAX);
        let mut found = Vec::new();
        for piece in bytes.chunks(piece) {
            reader.push(piece, &mut found).unwrap();
        }
        prop_assert!(reader.finish().is_ok() && reader.at_frame_start());
        prop_assert_eq!(found, frames);
    }
}

#[test]
fn rows_travel_in_parts_of_a_mebibyte_and_a_stop_overtakes_them() {
    let values = (0..(2 * PART_BYTES_MAX + 16) / 4).map(|at| (at % 251) as f32).collect();
    let frame = Frame::rows(Round(3), 4, values);
    let stop = Frame::stop(&Stop { origin: arith::base::Rank(1), reason: "enough".into() });
    let mut reader = Reader::new();
    reader.set_rows_bytes_max(frame.payload_bytes());
    let (mut found, mut sizes) = (Vec::new(), Vec::new());
    let mut writer = Writer::new(frame.clone()).unwrap();
    while let Some(part) = writer.next_part() {
        sizes.push(part.payload.len());
        reader.push(&part.to_bytes(), &mut found).unwrap();
        if sizes.len() == 1 {
            reader.push(&written(stop.clone()), &mut found).unwrap();
        }
    }
    assert_eq!(sizes, [PART_BYTES_MAX, PART_BYTES_MAX, 16]);
    assert_eq!(found, [stop, frame]);
}

#[test]
fn values_that_parts_cut_come_whole_and_room_that_was_given_is_used() {
    let bytes = crate::cases_frame::cut_values(16);
    let mut reader = Reader::new();
    reader.set_rows_bytes_max(16);
    reader.set_room(vec![5.0; 99]);
    let mut found = Vec::new();
    bytes.chunks(7).for_each(|bytes| reader.push(bytes, &mut found).unwrap());
    let expected = Frame::rows(Round(9), 2, vec![1.0, 2.0, 3.0, f32::NAN]);
    assert_eq!((found[0].values.capacity(), &found[0]), (99, &expected));
    assert!(!reader.has_room());
}

#[test]
fn the_parts_of_a_rows_frame_share_the_receivers_buffer() {
    let bytes = crate::cases_frame::two_parts(&[]);
    let (mut reader, mut found) = (Reader::new(), Vec::new());
    reader.set_rows_bytes_max(16);
    assert_eq!(reader.push(&bytes, &mut found), Ok(()));
    let (mut reader, mut none) = (Reader::new(), Vec::new());
    reader.set_rows_bytes_max(15);
    let error = reader.push(&bytes, &mut none).unwrap_err();
    assert_eq!(error.to_string(), "TooLarge: frame.rows_bytes: expected at most 15, found 16");
    assert_eq!((found.len(), none.len()), (1, 0));
}

#[test]
fn a_rows_buffer_doubles_but_never_past_the_receivers() {
    let frame = Frame::rows(Round(3), 1, vec![7.0; PART_BYTES_MAX / 4 + 3]);
    let (mut reader, mut found) = (Reader::new(), Vec::new());
    reader.set_rows_bytes_max(frame.payload_bytes());
    reader.push(&written(frame), &mut found).unwrap();
    assert_eq!(found[0].values.capacity(), PART_BYTES_MAX / 4 + 3);
}

#[test]
fn a_writer_refuses_what_a_reader_would() {
    let code = |frame| Writer::new(frame).err().unwrap().code();
    assert_eq!(code(Frame::rows(Round(3), 0, vec![0.0])), "OtherRows");
    assert_eq!(code(Frame::rows(Round(3), 1, vec![])), "OtherRows");
    assert_eq!(code(Frame::rows(Round(0), 1, vec![0.0])), "OutOfTurn");
    assert_eq!(code(Frame::plan(Round(1), vec![0; PART_BYTES_MAX + 1])), "TooLarge");
    let frame = Frame { kind: Kind::Beat, ..Frame::control(vec![0; 33]) };
    assert_eq!(code(frame), "TooLarge");
    assert_eq!(code(Frame::berth(Round(3), 0, 1)), "OtherRows");
}

#[test]
fn a_berth_has_a_number_of_four_bytes_and_the_plans_rows() {
    let berth = || Frame::berth(Round(3), 7, 5);
    assert_eq!(berth().into_berth(7), Ok(5));
    assert_eq!(berth().into_berth(8).unwrap_err().code(), "OtherRows");
    let short = Frame { payload: vec![0; 3], ..berth() };
    assert_eq!(short.into_berth(7).unwrap_err().code(), "Truncated");
}
