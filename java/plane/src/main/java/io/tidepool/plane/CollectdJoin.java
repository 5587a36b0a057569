package io.tidepool.plane;

/**
 * Joins the six messages of one reading of collectd by their time. A reading is complete with the
 * sixth, or ends when one of a newer time comes; then one missing part follows from the memory of
 * the node, which does not change. With more missing, or before the first full reading, it is given
 * up.
 */
final class CollectdJoin {

    /** A clock that is set back by more than this starts anew; less is a late message. */
    static final long STEP_BACK_MS = 60_000;

    private static final int ALL = (1 << CollectdReader.PARTS.size()) - 1;

    /** What a message was. */
    enum Outcome { WAITING, REPEATED, LATE }

    /** The reading that the message completed, if it did; read it before the next call. */
    Reading complete;
    /** Whether it ended a reading that had to be given up. */
    boolean gaveUp;

    Outcome take(NodeState state, Reading part) {
        complete = null;
        gaveUp = false;
        long atMs = part.atMs;
        long newestMs = state.joinedMs != 0 ? state.joinedMs : state.lastAtMs;
        if (atMs < newestMs - STEP_BACK_MS) {
            state.joinedMs = 0;
            state.start = null;
        } else if (state.start != null && state.joinedMs == 0 && atMs <= state.lastAtMs) {
            return atMs == state.lastAtMs ? Outcome.REPEATED : Outcome.LATE;
        } else if (atMs < state.joinedMs) {
            return Outcome.LATE;
        }
        if (atMs > state.joinedMs && state.joinedMs != 0) {
            finish(state, part);
        }
        if (atMs != state.joinedMs) {
            state.joinedMs = atMs;
            state.joinedParts = 0;
            state.joinedBytes = new long[CollectdReader.PARTS.size()];
        }
        int bit = 1 << part.part;
        if ((state.joinedParts & bit) != 0) {
            return Outcome.REPEATED;
        }
        state.joinedParts |= bit;
        state.joinedBytes[part.part] = part.partBytes;
        if (state.joinedParts == ALL) {
            finish(state, part);
        }
        return Outcome.WAITING;
    }

    private void finish(NodeState state, Reading part) {
        long sum = 0;
        for (long bytes : state.joinedBytes) {
            sum = Law.add(sum, bytes);
        }
        if (state.joinedParts == ALL) {
            state.fullBytes = sum;
        } else {
            int missing = ALL & ~state.joinedParts;
            if (Integer.bitCount(missing) != 1 || state.fullBytes < sum) {
                gaveUp = true;
                state.joinedMs = 0;
                return;
            }
            state.joinedBytes[Integer.numberOfTrailingZeros(missing)] = state.fullBytes - sum;
        }
        complete = reading(state, part);
        state.joinedMs = 0;
    }

    private static Reading reading(NodeState state, Reading part) {
        Reading reading = Reading.of(Reading.SAMPLE, part.recordMs);
        reading.cluster = part.cluster;
        reading.node = part.node;
        // The time in milliseconds rises, so it is the number.
        reading.number = state.joinedMs;
        reading.atMs = state.joinedMs;
        reading.totalBytes = state.fullBytes;
        reading.availableBytes = 0;
        for (int i = 0; i < state.joinedBytes.length; i++) {
            if (CollectdReader.isAvailable(i)) {
                reading.availableBytes = Law.add(reading.availableBytes, state.joinedBytes[i]);
            }
        }
        reading.demandBytes = reading.totalBytes - reading.availableBytes;
        return reading;
    }
}
