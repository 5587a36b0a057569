//! Whatever the bytes are, decoders answer: a slice of what the fuzz targets do.

use proptest::prelude::*;
use tidepool_peer::fuzzing;

fn bytes(length_max: usize) -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec(any::<u8>(), 0..=length_max)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn frames_without_the_key_are_never_taken(bytes in bytes(400)) {
        prop_assert_eq!(fuzzing::stream(&bytes), 0);
    }

    #[test]
    fn frames_of_members_with_any_content_are_answered(bytes in bytes(400)) {
        fuzzing::sealed_stream(&bytes);
    }

    #[test]
    fn frames_of_members_with_likely_fields_are_answered(
        kind in 0_u8..24, detail in 0_u8..5, length in prop_oneof![0..9_u32, any::<u32>()],
        number in 0_u64..3,
    ) {
        let mut fields = vec![kind, detail, 0, 0];
        fields.extend_from_slice(&length.to_le_bytes());
        fields.extend_from_slice(&number.to_le_bytes());
        fuzzing::sealed_stream(&fields);
    }

    #[test]
    fn hellos_of_anybody_are_answered(
        rest in bytes(200), lengths in prop::collection::vec(0_u8..70, 3),
    ) {
        fuzzing::hello(&rest);
        let mut hello = [&b"TPpc\x01\x00\x01"[..], &[9; 32]].concat();
        for length in &lengths {
            hello.push(*length);
            hello.extend(std::iter::repeat_n(b'n', usize::from(*length)));
        }
        let good = lengths.iter().all(|length| (1..=64).contains(length));
        prop_assert_eq!(fuzzing::hello(&hello), good);
        hello.extend_from_slice(&rest);
        prop_assert_eq!(fuzzing::hello(&hello), good && rest.is_empty());
    }

    #[test]
    fn datagrams_of_anybody_are_answered(bytes in bytes(400)) {
        fuzzing::datagram(&bytes);
        fuzzing::datagram(&[&b"TPd1"[..], &bytes].concat());
    }
}
