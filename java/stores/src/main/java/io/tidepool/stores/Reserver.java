package io.tidepool.stores;

import java.io.IOException;

/** Reserves room in a store. */
interface Reserver {

    /** Room that is reserved, and stays empty. */
    interface Piece {

        /** Reserves so much more. Where that fails, the piece is lost. */
        void extend(long bytes) throws IOException;

        /** Gives the room back. */
        void cancel();

        /** Whether the store has dropped it. */
        boolean isLost();
    }

    /**
     * Reserves room; the store evicts what is in the way.
     *
     * @throws NoRoomException where it cannot
     */
    Piece reserve(long bytes) throws IOException;

    /** Waits until the store has taken note of what was given back. */
    void settle();
}
