//! Suggestions of nodes by multicast DNS (RFC 6762 and 6763): what a head asks everybody on its
//! link, and what an agent that announces itself answers. A suggestion is a name and an address,
//! and nothing more: who has the key is a node.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// Where questions go.
pub const GROUP: Ipv4Addr = Ipv4Addr::new(224, 0, 0, 251);
/// And to which port.
pub const PORT: u16 = 5_353;
/// Most bytes of a packet that is looked at.
pub const PACKET_BYTES_MAX: usize = 9_000;
/// Most questions or records of a packet that are looked at.
pub const RECORDS_MAX: usize = 64;
/// Longest name of a node that announces itself.
pub const NAME_BYTES_MAX: usize = 63;
/// Most labels of a DNS name.
const LABELS_MAX: usize = 16;
/// What agents are, as DNS has it.
const SERVICE: [&str; 3] = ["_baton", "_tcp", "local"];
/// How long an answer holds, in seconds.
const TTL_S: u32 = 10;

const A: u16 = 1;
const PTR: u16 = 12;
const TXT: u16 = 16;
const AAAA: u16 = 28;
const SRV: u16 = 33;
const ANY: u16 = 255;
const INTERNET: u16 = 1;
/// A response that speaks for itself.
const RESPONSE: u16 = 0x8400;

/// A node that may be there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Suggestion {
    /// What it calls itself.
    pub name: String,
    /// Where its agent listens.
    pub address: SocketAddr,
}

/// The packet that asks for agents.
pub fn question() -> Vec<u8> {
    let mut packet = head(0, 0, 1, 0);
    put_name(&mut packet, &SERVICE);
    put(&mut packet, &[PTR, INTERNET]);
    packet
}

/// The number of a packet that asks for agents.
pub fn asks(packet: &[u8]) -> Option<u16> {
    let mut reader = Reader { packet, at: 0 };
    let (id, flags, counts) = reader.head()?;
    if flags & 0x8000 != 0 {
        return None;
    }
    for _ in 0..usize::from(counts[0]).min(RECORDS_MAX) {
        let name = reader.name()?;
        let (kind, _) = (reader.number()?, reader.number()?);
        if is_service(&name) && [PTR, ANY].contains(&kind) {
            return Some(id);
        }
    }
    None
}

/// The answer of an agent called `name`, of which at most [`NAME_BYTES_MAX`] bytes count.
pub fn answer(id: u16, name: &str, address: SocketAddr) -> Vec<u8> {
    let name = &name[..name.floor_char_boundary(NAME_BYTES_MAX)];
    let instance = [name, SERVICE[0], SERVICE[1], SERVICE[2]];
    let host = [name, SERVICE[2]];
    let mut packet = head(id, RESPONSE, 1, 4);
    put_name(&mut packet, &SERVICE);
    put(&mut packet, &[PTR, INTERNET]);
    let data = |labels: &[&str]| {
        let mut data = Vec::new();
        put_name(&mut data, labels);
        data
    };
    let mut srv = Vec::new();
    put(&mut srv, &[0, 0, address.port()]);
    srv.extend(data(&host));
    put_record(&mut packet, &SERVICE, PTR, &data(&instance));
    put_record(&mut packet, &instance, SRV, &srv);
    put_record(&mut packet, &instance, TXT, &[0]);
    match address.ip() {
        IpAddr::V4(ip) => put_record(&mut packet, &host, A, &ip.octets()),
        IpAddr::V6(ip) => put_record(&mut packet, &host, AAAA, &ip.octets()),
    }
    packet
}

/// What a packet suggests; nothing where it is none of ours.
pub fn suggestions(packet: &[u8]) -> Vec<Suggestion> {
    read(packet).unwrap_or_default()
}

/// Labels of a DNS name.
type Name = Vec<String>;

fn read(packet: &[u8]) -> Option<Vec<Suggestion>> {
    let mut reader = Reader { packet, at: 0 };
    let (_, flags, counts) = reader.head()?;
    if flags & 0x8000 == 0 {
        return None;
    }
    for _ in 0..usize::from(counts[0]).min(RECORDS_MAX) {
        reader.name()?;
        reader.bytes(4)?;
    }
    let count: usize = counts[1..].iter().map(|count| usize::from(*count)).sum();
    let (mut services, mut hosts) = (Vec::new(), Vec::<(Name, IpAddr)>::new());
    for _ in 0..count.min(RECORDS_MAX) {
        let name = reader.name()?;
        let kind = reader.number()?;
        reader.bytes(6)?;
        let bytes = reader.number()?;
        let mut data = Reader { packet, at: reader.at };
        reader.bytes(usize::from(bytes))?;
        match kind {
            SRV if name.len() == SERVICE.len() + 1 && is_service(&name[1..]) => {
                data.bytes(4)?;
                let port = data.number()?;
                services.push((name[0].clone(), data.name()?, port));
            }
            A => {
                hosts.push((name, Ipv4Addr::from(<[u8; 4]>::try_from(data.bytes(4)?).ok()?).into()))
            }
            AAAA => {
                hosts.push((
                    name,
                    Ipv6Addr::from(<[u8; 16]>::try_from(data.bytes(16)?).ok()?).into(),
                ));
            }
            _ => {}
        }
    }
    let suggestion = |(name, host, port): (String, Name, u16)| {
        let ip = hosts.iter().find(|(at, _)| *at == host)?.1;
        Some(Suggestion { name, address: SocketAddr::new(ip, port) })
    };
    Some(services.into_iter().filter_map(suggestion).collect())
}

fn is_service(name: &[String]) -> bool {
    name.len() == SERVICE.len() && name.iter().zip(SERVICE).all(|(a, b)| a.eq_ignore_ascii_case(b))
}

fn head(id: u16, flags: u16, questions: u16, answers: u16) -> Vec<u8> {
    let mut packet = Vec::new();
    put(&mut packet, &[id, flags, questions, answers, 0, 0]);
    packet
}

fn put(packet: &mut Vec<u8>, numbers: &[u16]) {
    packet.extend(numbers.iter().flat_map(|number| number.to_be_bytes()));
}

fn put_name(packet: &mut Vec<u8>, labels: &[&str]) {
    for label in labels {
        packet.push(label.len() as u8);
        packet.extend(label.as_bytes());
    }
    packet.push(0);
}

fn put_record(packet: &mut Vec<u8>, name: &[&str], kind: u16, data: &[u8]) {
    put_name(packet, name);
    put(packet, &[kind, INTERNET, (TTL_S >> 16) as u16, TTL_S as u16, data.len() as u16]);
    packet.extend(data);
}

struct Reader<'a> {
    packet: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    fn bytes(&mut self, count: usize) -> Option<&'a [u8]> {
        let bytes = self.packet.get(self.at..self.at.checked_add(count)?)?;
        self.at += count;
        Some(bytes)
    }

    fn number(&mut self) -> Option<u16> {
        Some(u16::from_be_bytes(self.bytes(2)?.try_into().ok()?))
    }

    /// Number, flags, and how many of each kind of entry there are.
    fn head(&mut self) -> Option<(u16, u16, [u16; 4])> {
        let (id, flags) = (self.number()?, self.number()?);
        Some((id, flags, [self.number()?, self.number()?, self.number()?, self.number()?]))
    }

    /// A name, which may go on further in front, again and again.
    fn name(&mut self) -> Option<Name> {
        let (mut labels, mut back) = (Vec::new(), None);
        loop {
            let start = self.at;
            let length = usize::from(self.bytes(1)?[0]);
            if length & 0xc0 == 0xc0 {
                let to = (length & 0x3f) << 8 | usize::from(self.bytes(1)?[0]);
                back.get_or_insert(self.at);
                // Only ever to the front, so that it ends.
                self.at = Some(to).filter(|to| *to < start)?;
                continue;
            }
            if length == 0 {
                self.at = back.unwrap_or(self.at);
                return Some(labels);
            }
            if length > 63 || labels.len() == LABELS_MAX {
                return None;
            }
            labels.push(String::from_utf8(self.bytes(length)?.to_vec()).ok()?);
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use proptest::prelude::*;

    use super::*;

    fn suggestion(name: &str, address: &str) -> Suggestion {
        Suggestion { name: name.into(), address: address.parse().unwrap() }
    }

    #[test]
    fn an_answer_suggests_its_node_and_says_which_question_it_is_of() {
        for (name, address) in [("box", "10.0.0.3:7500"), ("a b.c", "[fd00::7]:7500")] {
            let packet = answer(7, name, address.parse().unwrap());
            assert_eq!(suggestions(&packet), [suggestion(name, address)]);
            assert_eq!((packet[1], asks(&packet)), (7, None));
        }
        let long = answer(0, &"é".repeat(60), "10.0.0.3:1".parse().unwrap());
        assert_eq!(suggestions(&long)[0].name, "é".repeat(31));
        assert_eq!((asks(&question()), suggestions(&question())), (Some(0), Vec::new()));
        let other =
            question().iter().map(|b| if *b == b'b' { b'B' } else { *b }).collect::<Vec<_>>();
        assert_eq!(asks(&other), Some(0), "names have no case");
        let other = String::from_utf8_lossy(&question()).replace("baton", "piano").into_bytes();
        assert_eq!(asks(&other), None);
    }

    #[test]
    fn names_that_go_on_in_front_are_read_and_those_that_go_round_are_not() {
        // As other responders write it: the service once, then pointers to it.
        let mut packet = head(0, RESPONSE, 0, 2);
        put_name(&mut packet, &["box", "_baton", "_tcp", "local"]);
        put(&mut packet, &[SRV, INTERNET, 0, 10, 12, 0, 0, 7_500]);
        packet.extend(b"\x03box\xc0\x1c");
        packet.extend([0xc0, 51]);
        put(&mut packet, &[A, INTERNET, 0, 10, 4]);
        packet.extend([10, 0, 0, 3]);
        assert_eq!(suggestions(&packet), [suggestion("box", "10.0.0.3:7500")]);
        let mut round = head(0, 0, 1, 0);
        round.extend([0xc0, 12, 0, 12, 0, 1]);
        assert_eq!(asks(&round), None);
        let mut many = head(0, 0, 1, 0);
        put_name(&mut many, &["a"; LABELS_MAX + 1]);
        put(&mut many, &[PTR, INTERNET]);
        assert_eq!(asks(&many), None);
    }

    #[test]
    fn as_many_records_as_the_limit_says_are_looked_at() {
        let packet = |before: usize| {
            let answer = answer(0, "box", "10.0.0.3:7500".parse().unwrap());
            let mut packet = head(0, RESPONSE, 0, before as u16 + 4);
            (0..before).for_each(|_| put_record(&mut packet, &["x"], TXT, &[0]));
            // Without its head and its question.
            packet.extend(&answer[12 + 19 + 4..]);
            suggestions(&packet)
        };
        assert_eq!(packet(RECORDS_MAX - 4).len(), 1);
        assert_eq!(packet(RECORDS_MAX - 3).len(), 0);
    }

    proptest! {
        #[test]
        fn no_bytes_do_harm(
            bytes in prop::collection::vec(any::<u8>(), 0..300),
            at in 0..200usize,
            byte in any::<u8>(),
        ) {
            let mut packet = answer(1, "box", "10.0.0.3:7500".parse().unwrap());
            let at = at % packet.len();
            packet[at] = byte;
            for packet in [&packet, &bytes] {
                prop_assert!(suggestions(packet).len() <= RECORDS_MAX);
                asks(packet);
            }
        }
    }
}
