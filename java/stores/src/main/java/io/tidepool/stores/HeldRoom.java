package io.tidepool.stores;

import io.tidepool.stores.Reserver.Piece;
import java.io.IOException;
import java.util.ArrayDeque;
import java.util.Deque;

/**
 * Room of a store that is held back, so that the store does without it. In pieces, since a piece
 * lies in one directory of the store and where one large piece finds no room, small ones may.
 */
final class HeldRoom {

    /** Below this, nothing is worth a call. */
    static final long PIECE_MIN_BYTES = 1 << 20;

    private static final class Held {
        final Piece piece;
        long bytes;

        Held(Piece piece, long bytes) {
            this.piece = piece;
            this.bytes = bytes;
        }
    }

    private final Reserver reserver;
    private final long pieceMaxBytes;
    /** The last one is the first to go. */
    private final Deque<Held> pieces = new ArrayDeque<>();
    private long heldBytes;

    HeldRoom(Reserver reserver, long pieceMaxBytes) {
        this.reserver = reserver;
        this.pieceMaxBytes = pieceMaxBytes;
    }

    long heldBytes() {
        return heldBytes;
    }

    int pieces() {
        return pieces.size();
    }

    /** Forgets pieces that the store has dropped. Answers whether there were any. */
    boolean dropLost() {
        boolean dropped = pieces.removeIf(held -> held.piece.isLost());
        heldBytes = pieces.stream().mapToLong(held -> held.bytes).sum();
        return dropped;
    }

    /** Gives all back. */
    void clear() {
        while (!pieces.isEmpty()) {
            pop().piece.cancel();
        }
    }

    /** Holds so many bytes back, or as many as go. */
    void hold(long bytes) throws IOException {
        dropLost();
        shrink(bytes);
        grow(bytes);
    }

    private void shrink(long bytes) {
        while (!pieces.isEmpty() && heldBytes - pieces.getLast().bytes >= bytes) {
            pop().piece.cancel();
        }
        if (heldBytes - bytes >= PIECE_MIN_BYTES) {
            // A part of the last one, which cannot be made smaller.
            pop().piece.cancel();
            reserver.settle();
        }
    }

    private void grow(long bytes) throws IOException {
        long step = pieceMaxBytes;
        while (bytes - heldBytes >= PIECE_MIN_BYTES) {
            long more = Math.min(bytes - heldBytes, step);
            try {
                add(more, step == pieceMaxBytes);
            } catch (NoRoomException full) {
                dropLost();
                if (more <= PIECE_MIN_BYTES) {
                    return;
                }
                step = Math.max(PIECE_MIN_BYTES, more / 2);
            }
        }
    }

    /** A piece more, or a larger last one, so that many small steps are not many pieces. */
    private void add(long bytes, boolean mayExtend) throws IOException {
        Held last = pieces.peekLast();
        if (mayExtend && last != null && last.bytes + bytes <= pieceMaxBytes) {
            last.piece.extend(bytes);
            last.bytes += bytes;
        } else {
            pieces.addLast(new Held(reserver.reserve(bytes), bytes));
        }
        heldBytes += bytes;
    }

    private Held pop() {
        Held last = pieces.removeLast();
        heldBytes -= last.bytes;
        return last;
    }
}
