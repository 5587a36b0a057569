//! Datagrams: sealed, opened once, and not believed otherwise.

use super::*;
use crate::SharedKey;

fn identity(node: &str, cluster: &str, key: u8) -> Identity {
    let key = SharedKey::from_bytes(&[key; 32]).expect("a key");
    Identity { cluster: cluster.to_owned(), node: node.to_owned(), key, tls: None }
}

fn sealer(start: u64) -> Sealer {
    Sealer::with_start(&identity("a", "reef", 1), start)
}

fn opener() -> Opener {
    Opener::new(&identity("b", "reef", 1))
}

#[test]
fn what_was_sealed_is_opened_once() {
    let (sealer, opener) = (Sealer::new(&identity("a", "reef", 1)), opener());
    for message in [&b""[..], b"1", &[7; 1400]] {
        let datagram = sealer.seal(message);
        assert!(datagram.len() <= message.len() + OVERHEAD_BYTES_MAX);
        assert_eq!(opener.open(&datagram), Ok(("a".to_owned(), message.to_owned())));
        assert_eq!(opener.open(&datagram), Err(Rejected::Replayed));
    }
}

#[test]
fn each_change_is_noticed() {
    let opener = opener();
    let datagram = sealer(1).seal(b"message");
    for at in 0..datagram.len() {
        let mut changed = datagram.clone();
        changed[at] ^= 0x10;
        let expected = match at {
            0..4 => Rejected::Garbage,
            4..12 => Rejected::Cluster,
            _ => Rejected::Forged,
        };
        assert_eq!(opener.open(&changed), Err(expected), "byte {at}");
        opener.open(&datagram[..at]).expect_err("cut");
    }
    let longer = [&datagram[..], b"x"].concat();
    assert_eq!(opener.open(&longer), Err(Rejected::Forged));
    opener.open(&datagram).expect("nothing of that counted as seen");
}

#[test]
fn other_clusters_other_keys_and_oneself_are_rejected() {
    let datagram = sealer(1).seal(b"message");
    let open = |node: &str, cluster: &str, key| {
        Opener::new(&identity(node, cluster, key)).open(&datagram).map(|_| ())
    };
    assert_eq!(open("b", "atoll", 1), Err(Rejected::Cluster));
    assert_eq!(open("b", "reef", 2), Err(Rejected::Forged));
    assert_eq!(open("a", "reef", 1), Err(Rejected::Reflected));
    assert_eq!(open("b", "reef", 1), Ok(()));
    // The cluster's name is part of the key, whatever the plain field says.
    let mut renamed = datagram.clone();
    renamed[4..12].copy_from_slice(&blake3::hash(b"atoll").as_bytes()[..8]);
    let other = Opener::new(&identity("b", "atoll", 1));
    assert_eq!(other.open(&renamed), Err(Rejected::Forged));
}

#[test]
fn datagrams_out_of_order_are_opened_and_very_old_ones_not() {
    let (sealer, opener) = (sealer(1), opener());
    let datagrams: Vec<_> = (0..300_u16).map(|n| sealer.seal(&n.to_le_bytes())).collect();
    opener.open(&datagrams[150]).expect("the first that comes");
    for late in (23..150).rev() {
        opener.open(&datagrams[late]).expect("within the window");
        assert_eq!(opener.open(&datagrams[late]), Err(Rejected::Replayed));
    }
    assert_eq!(opener.open(&datagrams[22]), Err(Rejected::Replayed), "too old to tell");
    opener.open(&datagrams[299]).expect("far ahead");
    assert_eq!(opener.open(&datagrams[150]), Err(Rejected::Replayed));
    assert_eq!(opener.open(&datagrams[171]), Err(Rejected::Replayed));
    opener.open(&datagrams[172]).expect("the last of the window");
}

#[test]
fn windows_agree_with_a_set_of_all_numbers() {
    let mut window = Window::new(1);
    let mut seen = std::collections::HashSet::new();
    let (mut greatest, mut state) = (None::<u64>, 1_u64);
    for _ in 0..20_000 {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        // Mostly a little ahead or behind, now and then far.
        let jump = if state >> 60 == 0 { 500 } else { 9 };
        let number = (greatest.unwrap_or(0) + (state >> 33) % jump).saturating_sub(4);
        let in_window = greatest.is_none_or(|greatest| number + 128 > greatest);
        let expected = in_window && seen.insert(number);
        assert_eq!(window.take(number), expected, "{number} after {greatest:?}");
        greatest = greatest.max(Some(number));
    }
}

#[test]
fn a_restarted_sender_is_believed_and_its_earlier_start_no_more() {
    let opener = opener();
    let (old, new) = (sealer(1), sealer(2));
    let now = Instant::now();
    let recorded = old.seal(b"recorded");
    opener.open_at(&old.seal(b"old"), now).expect("the first start");
    opener.open_at(&new.seal(b"new"), now).expect("the second start");
    assert_eq!(opener.open_at(&recorded, now), Err(Rejected::Replayed));
    // Not while the sender lives.
    let later = now + SILENCE / 2;
    opener.open_at(&new.seal(b"new"), later).expect("it lives");
    assert_eq!(opener.open_at(&recorded, now + SILENCE), Err(Rejected::Replayed));
}

#[test]
fn a_sender_whose_clock_went_back_is_believed_after_its_silence() {
    let opener = opener();
    let (before, after) = (sealer(1_000), sealer(10));
    let now = Instant::now();
    let seen = before.seal(b"seen");
    opener.open_at(&seen, now).expect("before");
    let early = after.seal(b"early");
    assert_eq!(opener.open_at(&early, now + SILENCE / 2), Err(Rejected::Replayed));
    let now = now + SILENCE;
    opener.open_at(&early, now).expect("after the silence");
    opener.open_at(&after.seal(b"more"), now).expect("it is the start that counts");
    // What was seen of the other start stays seen.
    assert_eq!(opener.open_at(&seen, now), Err(Rejected::Replayed));
    assert_eq!(opener.open_at(&early, now), Err(Rejected::Replayed));
}

#[test]
fn senders_that_nobody_hears_of_are_forgotten_at_a_bound() {
    let opener = opener();
    let now = Instant::now();
    for number in 0..=SENDERS_MAX {
        let later = now + Duration::from_millis(number as u64);
        opener.take(&format!("node-{number}"), 1, 0, later).expect("new");
    }
    let senders = opener.senders.lock();
    assert_eq!(senders.len(), SENDERS_MAX);
    assert!(!senders.contains_key("node-0") && senders.contains_key("node-1"));
}
