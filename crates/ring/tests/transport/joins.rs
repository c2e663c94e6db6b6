//! Rings that form, carry frames and form again.

use std::time::{Duration, Instant};

use arith::base::{Epoch, Rank, Round, StreamId};
use ring::link::{Inbound, LinkError};
use ring::memory;
use ring::tcp::Transport;
use wire::beat::Beat;
use wire::cancel::Cancel;
use wire::frame::{Frame, Kind};
use wire::hello::Encryption;
use wire::preamble::Cipher;
use wire::stop::Stop;

use crate::support::*;

#[test]
fn rings_of_two_to_four_ranks_carry_frames_both_ciphers_and_modes() {
    for (world, cipher, encryption) in [
        (2, Cipher::ChaChaPoly, Encryption::On),
        (3, Cipher::AesGcm, Encryption::On),
        (4, Cipher::ChaChaPoly, Encryption::Off),
    ] {
        let ring = ring_of(world, |c| (c.cipher, c.encryption) = (cipher, encryption));
        let links = join_all(&ring, 7);
        assert!(links.iter().all(|l| l.epoch == Epoch(7)));
        all_hear(&links, "to all");
    }
}

#[test]
fn ranks_may_start_in_any_order() {
    for order in [[0, 1, 2], [2, 1, 0], [1, 2, 0], [2, 0, 1]] {
        // The ports must be known before the transports are there.
        let listeners: Vec<_> =
            (0..3).map(|_| std::net::TcpListener::bind("127.0.0.1:0").unwrap()).collect();
        let addresses: Vec<_> = listeners.iter().map(|l| l.local_addr().unwrap()).collect();
        drop(listeners);
        let mut links = std::thread::scope(|scope| {
            let waits = order.map(|rank: u32| {
                let mut config = config(rank, 3);
                config.listen = vec![addresses[rank as usize]];
                config.next = vec![addresses[(rank as usize + 1) % 3].to_string()];
                let wait = scope.spawn(move || {
                    let transport = Transport::start(config).unwrap();
                    let links = join(&transport, (rank == 0).then_some(Epoch(3))).unwrap();
                    (rank, transport, links)
                });
                std::thread::sleep(Duration::from_millis(120));
                wait
            });
            waits.map(|wait| wait.join().unwrap())
        });
        links.sort_by_key(|(rank, ..)| *rank);
        let (transports, links): (Vec<_>, Vec<_>) =
            links.into_iter().map(|(_, transport, links)| (transport, links)).unzip();
        all_hear(&links, "in order");
        drop(transports);
    }
}

#[test]
fn both_loopbacks_carry_links_with_a_key_or_without() {
    for address in ["127.0.0.1:0", "[::1]:0"] {
        for keyed in [true, false] {
            let ring = ring_of(2, |c| {
                c.listen = vec![address.parse().unwrap()];
                if !keyed {
                    c.key = None;
                }
            });
            all_hear(&join_all(&ring, 1), address);
        }
    }
}

#[test]
fn rows_of_ten_mebibytes_arrive_whole_and_in_order() {
    for encryption in [Encryption::On, Encryption::Off] {
        let ring = ring_of(2, |c| c.encryption = encryption);
        let links = join_all(&ring, 1);
        links[1].set_rows_bytes_max(10 << 20);
        // The last two end with their first record, and with the first byte of a second one.
        let sizes = [10 << 20, 4, 1 << 20, (1 << 20) + 4, 65_519 - 35, 65_519 - 31];
        for (round, bytes) in (1..).zip(sizes) {
            links[0].outbound.send(rows(round, bytes)).unwrap();
        }
        for (round, bytes) in (1..).zip(sizes) {
            assert!(frame(&links[1]) == rows(round, bytes), "{bytes} bytes differ");
        }
    }
}

#[test]
fn rows_that_come_where_others_lay_have_nothing_of_them() {
    const MOST: usize = 8 << 20;
    let ring = ring_of(2, |_| ());
    let links = join_all(&ring, 1);
    links.iter().for_each(|links| links.set_rows_bytes_max(MOST));
    let sizes = [MOST, 2 << 20, MOST - 4, (1 << 20) + 4, 8].into_iter().cycle();
    let mut again = 0;
    for (round, bytes) in (1..=40).zip(sizes) {
        links[0].outbound.send(rows(round, bytes)).unwrap();
        for (to, after) in [(1, 0), (0, 1)] {
            let found = frame(&links[to]);
            assert!(found == rows(round, bytes), "round {round}: {bytes} bytes differ");
            let room = 4 * found.values.capacity();
            assert!(room <= MOST, "round {round}: room for {room} bytes");
            again += usize::from(room > 2 * bytes);
            if after == 0 {
                // Sent on, its memory is the next one's.
                links[to].outbound.send(found).unwrap();
            }
        }
    }
    assert!(again > 0, "no memory was used again");
}

#[test]
fn rows_past_the_receivers_buffer_break_the_link() {
    let ring = ring_of(2, |_| ());
    let links = join_all(&ring, 1);
    links[1].set_rows_bytes_max(999);
    links[0].outbound.send(rows(1, 996)).unwrap();
    assert_eq!(frame(&links[1]), rows(1, 996));
    links[0].outbound.send(rows(2, 1000)).unwrap();
    assert_eq!(broken(&links[1]).code(), "TooLarge");
    assert_eq!(broken(&links[0]).code(), "LinkClosed");
}

#[test]
fn a_frame_that_the_reader_would_refuse_is_not_sent() {
    let ring = ring_of(2, |_| ());
    let links = join_all(&ring, 1);
    let bad = Frame { rows: 3, ..Frame::plan(Round(1), vec![0; 24]) };
    assert_eq!(links[0].outbound.send(bad).unwrap_err().code(), "OtherRows");
    all_hear(&links, "still");
}

#[test]
fn beats_keep_an_idle_ring_alive_and_tell_progress() {
    let ring = ring_of(3, |c| c.times.silent = Duration::from_millis(900));
    let links = join_all(&ring, 1);
    links[1].computed(Duration::from_millis(3));
    links[1].set_progress(Round(5), 4);
    assert_eq!(next(&links[0]), Inbound::Poke);
    let [tally] = links[0].tallies()[..] else { panic!("{:?}", links[0].tallies()) };
    assert_eq!((tally.origin, tally.done, tally.computed_us), (Rank(1), 4, 3000));
    assert!(tally.sent_bytes > 0 && tally.memory_bytes > 0, "{tally:?}");
    // Nothing new is told of: a ring that waits has nothing to say.
    nothing(&links[0], Duration::from_millis(2500));
    let beat = Beat { rank: Rank(1), epoch: Epoch(1), round: Round(5), done: 4 };
    assert_eq!(links[2].last_beat(), Some(beat));
    all_hear(&links, "after a while");
}

fn cancel(origin: u32, stream: u32, epoch: u64) -> Frame {
    let (origin, stream, epoch) = (Rank(origin), StreamId(stream), Epoch(epoch));
    Frame::cancel(&Cancel { origin, stream, epoch })
}

#[test]
fn stops_and_cancels_reach_every_rank_but_their_origin_once() {
    let ring = ring_of(4, |_| ());
    let sockets = join_all(&ring, 9);
    for links in [sockets, memory::ring(4, Epoch(9))] {
        let stop = Frame::stop(&Stop { origin: Rank(2), reason: "out of memory".into() });
        links[2].outbound.send(stop.clone()).unwrap();
        for rank in [3, 0, 1] {
            assert_eq!(frame(&links[rank]), stop, "rank {rank}");
        }
        // A stop breaks nothing, and a cancel of another epoch goes nowhere.
        links[0].outbound.send(cancel(0, 7, 8)).unwrap();
        links[0].outbound.send(cancel(0, 7, 9)).unwrap();
        for rank in [1, 2, 3] {
            assert_eq!(frame(&links[rank]), cancel(0, 7, 9), "rank {rank}");
        }
        all_hear(&links, "nothing else");
    }
}

#[test]
fn a_cancel_overtakes_rows_that_wait_and_parts_of_those_under_way() {
    let ring = ring_of(2, |_| ());
    let links = join_all(&ring, 1);
    let bytes = 64 << 20;
    links[1].set_rows_bytes_max(bytes);
    links[0].outbound.send(rows(1, bytes)).unwrap();
    links[0].outbound.send(rows(2, 12)).unwrap();
    links[0].outbound.send(cancel(0, 3, 1)).unwrap();
    let kinds: Vec<_> = (0..3).map(|_| frame(&links[1]).kind).collect();
    assert_eq!(kinds, [Kind::Cancel, Kind::Rows, Kind::Rows]);
}

#[test]
fn a_ring_joins_again_with_a_new_epoch_while_followers_still_hold_the_old() {
    let ring = ring_of(3, |_| ());
    let old = join_all(&ring, 1);
    let start = Instant::now();
    std::thread::scope(|scope| {
        let lead = scope.spawn(|| join(&ring[0], Some(Epoch(2))).unwrap());
        // Their compute sides come back late.
        for links in &old {
            let error = broken(links);
            let codes = ["Closed", "LinkClosed", "Replaced"];
            assert!(codes.contains(&error.code()), "{error}");
            assert_eq!(links.outbound.send(control("old")), Err(links.broken().unwrap()));
        }
        let wait = |rank: usize| join(&ring[rank], None).unwrap();
        let (one, two) = (wait(1), wait(2));
        let new = [lead.join().unwrap(), one, two];
        assert!(new.iter().all(|l| l.epoch == Epoch(2)));
        // Dropping what is old leaves the new alone.
        drop(old);
        all_hear(&new, "anew");
    });
    assert!(start.elapsed() < LONG);
    all_hear(&join_all(&ring, 3), "and again");
}

#[test]
fn closing_lets_what_was_sent_arrive() {
    let ring = ring_of(2, |_| ());
    let mut links = join_all(&ring, 1);
    links[1].set_rows_bytes_max(4 << 20);
    links[0].outbound.send(rows(1, 4 << 20)).unwrap();
    links.remove(0).stop(Rank(0), "drained");
    let kinds = [frame(&links[0]).kind, frame(&links[0]).kind];
    assert!(kinds.contains(&Kind::Rows) && kinds.contains(&Kind::Stop), "{kinds:?}");
    assert_eq!(broken(&links[0]).rank(), Some(Rank(0)));
}

#[test]
fn a_waker_wakes_and_shutdown_ends_every_wait() {
    let ring = ring_of(2, |_| ());
    let links = join_all(&ring, 1);
    links[0].waker.wake();
    assert_eq!(next(&links[0]), Inbound::Poke);
    drop(links);
    std::thread::scope(|scope| {
        let wait = scope.spawn(|| join(&ring[1], None));
        std::thread::sleep(Duration::from_millis(100));
        ring[1].shutdown();
        assert_eq!(wait.join().unwrap().unwrap_err(), LinkError::Closed);
    });
    assert_eq!(join(&ring[1], None).unwrap_err(), LinkError::Closed);
}

#[test]
fn a_ring_of_one_in_memory_hears_itself() {
    let links = memory::ring(1, Epoch(4));
    all_hear(&links, "alone");
    links[0].set_rows_bytes_max(100);
    links[0].outbound.send(rows(1, 100)).unwrap();
    assert_eq!(frame(&links[0]), rows(1, 100));
    links[0].outbound.send(cancel(0, 1, 4)).unwrap();
    links[0].outbound.close();
    assert_eq!(next(&links[0]), Inbound::Broken(LinkError::Closed));
}

#[test]
fn a_ring_in_memory_breaks_for_all_when_one_leaves() {
    let mut links = memory::ring(3, Epoch(4));
    drop(links.remove(1));
    for links in &links {
        assert_eq!(broken(links).rank(), Some(Rank(1)));
        assert!(links.outbound.send(control("x")).is_err());
    }
}
