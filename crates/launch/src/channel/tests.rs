use std::sync::Arc;

use proptest::prelude::*;

use super::*;

/// Frames that arrive at the launcher's end, and the error that ends them.
fn run(channel: RankChannel) -> (Vec<Vec<u8>>, Result<(), FrameError>) {
    let mut frames = Vec::new();
    let result = channel.run(|frame| frames.push(frame));
    (frames, result)
}

proptest! {
    #[test]
    fn random_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        let _ = decode_from::<(u32, String, Vec<f64>)>(3, &bytes);
    }
}

#[test]
fn documents_in_frames_keep_omitted_fields() {
    #[derive(Debug, PartialEq, Serialize, serde::Deserialize)]
    struct Document {
        #[serde(default, skip_serializing_if = "Option::is_none")]
        first: Option<u32>,
        second: String,
    }
    let document = || Document { first: None, second: "x".to_owned() };
    let bytes = encode(&(document(), 7u8)).unwrap();
    assert_eq!(decode::<(Document, u8)>(&bytes).unwrap(), (document(), 7));
    assert!(decode::<Document>(b"{}").is_err());
}

#[test]
fn frames_before_an_oversized_one_arrive() {
    let (channel, fd) = RankChannel::new(Arc::from([])).unwrap();
    let mut rank_end = std::os::unix::net::UnixStream::from(fd);
    let stream = [0, 0, 0, 1, 1, 0, 0, 0, 0, 255, 255, 255, 255];
    std::io::Write::write_all(&mut rank_end, &stream).unwrap();
    let (frames, result) = run(channel);
    assert_eq!(frames, [vec![1], vec![]]);
    assert_eq!(result, Err(FrameError::TooLong { bytes: u32::MAX as usize, max: MAX_FRAME_LEN }));
}

#[test]
fn oversized_messages_are_refused_by_the_sender() {
    let payload = vec![0; MAX_FRAME_LEN + 1];
    assert!(RankChannel::new(payload.into()).is_err());
}

/// Longer than the buffers of the socket, in both directions at once.
#[test]
fn a_rank_may_send_before_it_reads_its_input() {
    let (input, message) = ("i".repeat(1 << 20), "m".repeat(1 << 20));
    let (channel, fd) = RankChannel::new(encode(&input).unwrap().into()).unwrap();
    let sent = message.clone();
    let rank = std::thread::spawn(move || {
        let mut rank_end = RankEnd::new(fd).unwrap();
        rank_end.send(&sent).unwrap();
        rank_end.recv_input::<String>().unwrap()
    });
    let (mut frames, result) = run(channel);
    assert_eq!(result, Ok(()));
    let RankFrame::Message(bytes) = RankFrame::parse(frames.remove(0)) else {
        panic!("{frames:?}")
    };
    assert_eq!(decode_from::<String>(0, &bytes).unwrap(), message);
    assert_eq!(rank.join().unwrap(), input);
}

#[test]
fn a_lost_peer_is_told_apart_from_messages() {
    let (channel, fd) = RankChannel::new(Arc::from([])).unwrap();
    let mut rank_end = RankEnd::new(fd).unwrap();
    rank_end.send(&1u32).unwrap();
    rank_end.report_lost_peer(300).unwrap();
    drop(rank_end);
    let frames: Vec<_> = run(channel).0.into_iter().map(RankFrame::parse).collect();
    assert_eq!(frames, [RankFrame::Message(b"1".to_vec()), RankFrame::LostPeer(300)]);
    for invalid in [vec![], vec![1], vec![2, 3]] {
        assert!(matches!(RankFrame::parse(invalid), RankFrame::Message(_)));
    }
}

#[test]
fn a_rank_that_does_not_read_its_input_is_no_error() {
    for input_len in [0, 10, 10 << 20] {
        let (channel, fd) = RankChannel::new(vec![0; input_len].into()).unwrap();
        drop(fd);
        assert_eq!(run(channel), (vec![], Ok(())));
    }
}

#[test]
fn the_rank_reports_a_launcher_that_is_gone_and_input_of_another_type() {
    let (channel, fd) = RankChannel::new(Arc::from([])).unwrap();
    drop(channel);
    let mut rank_end = RankEnd::new(fd).unwrap();
    assert!(matches!(rank_end.recv_input::<u32>(), Err(ChannelError::Closed)));
    assert!(matches!(rank_end.send(&1u32), Err(ChannelError::Io(_))));
    let error = decode_from::<u8>(7, b"1 2").unwrap_err().to_string();
    assert!(error.contains("rank 7") && error.contains("trailing characters"), "{error}");
}
