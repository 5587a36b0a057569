//! Frames: what was sealed is opened once and in order, and nothing else is.

use super::*;

fn keys() -> Keys {
    Keys::new([1; 32], [2; 32])
}

/// A header whose code is right, whatever its fields are.
fn header(kind: u8, zero: u8, length: u32, number: u64) -> [u8; HEADER_BYTES] {
    let mut header = [0; HEADER_BYTES];
    (header[0], header[3]) = (kind, zero);
    header[4..8].copy_from_slice(&length.to_le_bytes());
    header[8..16].copy_from_slice(&number.to_le_bytes());
    let code = keys().header_code(&header[..16]);
    header[16..].copy_from_slice(&code);
    header
}

#[test]
fn frames_are_opened_in_the_order_in_which_they_were_sealed() {
    let (mut sealing, mut opening) = (Sealing::new(keys()), Opening::new(keys()));
    let frames: Vec<_> = (0..4_u8).map(|n| sealing.frame(Kind::Call, &[n; 5])).collect();
    let head = |index: usize| -> &[u8; HEADER_BYTES] {
        frames[index][..HEADER_BYTES].try_into().expect("a header")
    };
    let first = opening.header(head(0)).expect("the first");
    assert_eq!(first, Header { kind: Kind::Call, detail: 0, length: 5, number: 0 });
    assert_eq!(opening.payload(&first, &frames[0][HEADER_BYTES..]), Ok(&[0; 5][..]));
    // The payload of another frame, though it is as long.
    assert_eq!(opening.payload(&first, &frames[1][HEADER_BYTES..]), Err(BadFrame::Forged));
    assert_eq!(opening.header(head(0)), Err(BadFrame::OutOfOrder));
    assert_eq!(opening.header(head(2)), Err(BadFrame::OutOfOrder));
    opening.header(head(1)).expect("a frame that was refused did not count");
}

#[test]
fn other_directions_and_connections_have_other_keys() {
    for (of_header, of_payload) in [(9, 2), (1, 9), (2, 1)] {
        let mut opening = Opening::new(Keys::new([of_header; 32], [of_payload; 32]));
        let frame = Sealing::new(keys()).frame(Kind::Reply, b"reply");
        let (head, followed) = frame.split_at(HEADER_BYTES);
        let opened = opening
            .header(head.try_into().expect("a header"))
            .and_then(|header| opening.payload(&header, followed).map(<[u8]>::to_vec));
        assert_eq!(opened, Err(BadFrame::Forged));
    }
}

#[test]
fn members_cannot_send_more_than_a_kind_may_have() {
    let most = PAYLOAD_BYTES_MAX as u32;
    for (kind, length_max) in [(1, most), (2, most), (3, 0), (16, most), (17, 0), (19, 0), (20, 0)]
    {
        let open = |length| Opening::new(keys()).header(&header(kind, 0, length, 0));
        assert_eq!(open(length_max).expect("as long as it may be").length, length_max as usize);
        assert_eq!(open(length_max + 1), Err(BadFrame::Oversized));
        assert_eq!(open(u32::MAX), Err(BadFrame::Oversized));
    }
    let block = Opening::new(keys()).header(&header(18, 0, u32::MAX, 0));
    assert_eq!(block.expect("the request bounds a block").length, u32::MAX as usize);
}

#[test]
fn unknown_kinds_and_fields_are_refused() {
    for kind in (0..=255).filter(|kind| Kind::of(*kind).is_none()) {
        let opened = Opening::new(keys()).header(&header(kind, 0, 0, 0));
        assert_eq!(opened, Err(BadFrame::Unknown), "kind {kind}");
    }
    let opened = Opening::new(keys()).header(&header(1, 1, 0, 0));
    assert_eq!(opened, Err(BadFrame::Unknown));
}

#[test]
fn what_follows_must_have_a_code() {
    let mut opening = Opening::new(keys());
    let header = opening.header(&header(1, 0, 0, 0)).expect("an empty request");
    for followed in [&b""[..], &[0; CODE_BYTES - 1], &[0; CODE_BYTES]] {
        assert_eq!(opening.payload(&header, followed), Err(BadFrame::Forged));
    }
}
