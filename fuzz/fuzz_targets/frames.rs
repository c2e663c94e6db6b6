//! A link's bytes: frames whatever the cut of the bytes, and what every frame's kind makes of its
//! payload.
#![no_main]

use libfuzzer_sys::fuzz_target;
use wire::frame::{Frame, Kind, Reader, Writer};

/// The receiver's rows buffer, as in the golden files.
const ROWS_BYTES_MAX: usize = 4096;

fuzz_target!(
    init: baton_fuzz::plant(baton_fuzz::wire(&["frame", "parts"]).into_iter().map(|(_, mut bytes)| {
        bytes.insert(0, 7);
        bytes
    })),
    |data: &[u8]| {
        let Some((cut, bytes)) = baton_fuzz::choice(data) else {
            return;
        };
        let whole = read(bytes, bytes.len().max(1));
        let pieces = read(bytes, usize::from(cut) + 1);
        assert_eq!(whole, pieces, "the cut of the bytes changed what they mean");
        for frame in whole.0 {
            understand(&frame);
            write(frame);
        }
    }
);

/// Frames of `bytes` given `size` at a time, and how it ended.
fn read(bytes: &[u8], size: usize) -> (Vec<Frame>, Result<(), wire::WireError>) {
    let mut reader = Reader::new();
    reader.set_rows_bytes_max(ROWS_BYTES_MAX);
    let mut frames = Vec::new();
    for piece in bytes.chunks(size) {
        if let Err(error) = reader.push(piece, &mut frames) {
            let again = reader.push(&[], &mut frames);
            assert_eq!(again, Err(error), "a broken reader stays broken");
            break;
        }
    }
    let end = reader.finish();
    (frames, end)
}

/// Decodes the payload as the receiver would.
fn understand(frame: &Frame) {
    let payload = &frame.payload[..];
    match frame.kind {
        Kind::Control => drop(wire::control::Message::decode(payload)),
        Kind::Plan => drop(wire::plan::Plan::decode(payload)),
        Kind::Rows => {
            assert!(frame.payload_bytes() <= ROWS_BYTES_MAX, "past the receiver's buffer");
            let (rows, width) = (frame.rows as usize, frame.values.len() / frame.rows as usize);
            assert!(frame.clone().into_rows(rows, width).is_ok());
            assert!(frame.clone().into_rows(rows, width + 1).is_err());
        }
        Kind::Stop => drop(wire::stop::Stop::decode(payload)),
        Kind::Beat => drop(wire::beat::Beat::decode(payload)),
        Kind::Cancel => drop(wire::cancel::Cancel::decode(payload)),
        Kind::Tally => drop(wire::tally::Tally::decode(payload)),
        Kind::Berth => drop(frame.clone().into_berth(frame.rows as usize)),
    }
}

/// What was read can be written, and reads as the same again.
fn write(frame: Frame) {
    let writer = Writer::new(frame.clone()).expect("a frame that was read is legal");
    let (frames, end) = read(&writer.into_bytes(), usize::MAX);
    assert_eq!((frames, end), (vec![frame], Ok(())));
}
