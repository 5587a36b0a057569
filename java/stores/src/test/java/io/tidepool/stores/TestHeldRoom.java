package io.tidepool.stores;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import io.tidepool.stores.Reserver.Piece;
import java.io.IOException;
import java.util.ArrayList;
import java.util.List;
import org.junit.Test;

/** How much is held back, in which pieces, and what happens where there is no room. */
public class TestHeldRoom {

    private static final long MIB = 1 << 20;
    private static final long PIECE = 64 * MIB;

    /** A worker that counts, and has room for so much. */
    private static final class Worker implements Reserver {
        final List<Block> blocks = new ArrayList<>();
        long room = Long.MAX_VALUE;
        boolean answers = true;
        int settled;

        long reserved() {
            return blocks.stream().filter(block -> !block.lost).mapToLong(it -> it.bytes).sum();
        }

        private void take(long bytes) throws IOException {
            if (!answers) {
                throw new IOException("gone");
            }
            if (reserved() + bytes > room) {
                throw new NoRoomException(null);
            }
        }

        @Override
        public Piece reserve(long bytes) throws IOException {
            take(bytes);
            Block block = new Block(this, bytes);
            blocks.add(block);
            return block;
        }

        @Override
        public void settle() {
            settled++;
        }
    }

    private static final class Block implements Piece {
        final Worker worker;
        long bytes;
        boolean lost;

        Block(Worker worker, long bytes) {
            this.worker = worker;
            this.bytes = bytes;
        }

        @Override
        public void extend(long more) throws IOException {
            try {
                worker.take(more);
            } catch (IOException failed) {
                lost = true;
                throw failed;
            }
            bytes += more;
        }

        @Override
        public void cancel() {
            worker.blocks.remove(this);
        }

        @Override
        public boolean isLost() {
            return lost;
        }
    }

    private final Worker worker = new Worker();
    private final HeldRoom room = new HeldRoom(worker, PIECE);

    private void holds(long bytes) {
        assertThat(room.heldBytes()).isEqualTo(bytes);
        assertThat(worker.reserved()).isEqualTo(bytes);
    }

    @Test
    public void whatIsHeldIsExact() throws IOException {
        for (long mib : new long[] {1000, 1, 700, 699, 64, 63, 65, 1024, 0}) {
            room.hold(mib * MIB + 17 * Math.min(mib, 1));
            assertThat(worker.reserved()).isEqualTo(room.heldBytes());
            assertThat(room.heldBytes()).isBetween(mib * MIB, mib * MIB + 17);
        }
        assertThat(worker.blocks).isEmpty();
    }

    @Test
    public void manySmallStepsAreFewPieces() throws IOException {
        for (long mib = 0; mib <= 1024; mib++) {
            room.hold(mib * MIB);
            holds(mib * MIB);
        }
        assertThat(room.pieces()).isEqualTo(16);
    }

    @Test
    public void aPartOfAPieceIsGivenBackWithTimeForTheWorkerToNotice() throws IOException {
        room.hold(2 * PIECE);
        room.hold(PIECE);
        assertThat(worker.settled).isZero();
        room.hold(PIECE - 10 * MIB);
        assertThat(worker.settled).isEqualTo(1);
        holds(PIECE - 10 * MIB);
    }

    @Test
    public void aChangeBelowTheLeastIsNoCall() throws IOException {
        room.hold(PIECE);
        worker.answers = false;
        room.hold(PIECE + MIB - 1);
        room.hold(PIECE - MIB + 1);
        holds(PIECE);
    }

    @Test
    public void whereThereIsLittleRoomAsMuchAsGoesIsHeld() throws IOException {
        worker.room = 100 * MIB + 300_000;
        room.hold(1024 * MIB);
        holds(100 * MIB);
        room.hold(1024 * MIB);
        holds(100 * MIB);
        worker.room = 200 * MIB;
        room.hold(1024 * MIB);
        holds(200 * MIB);
    }

    @Test
    public void aPieceThatCouldNotGrowIsReservedAgain() throws IOException {
        room.hold(30 * MIB);
        worker.room = 40 * MIB;
        room.hold(50 * MIB);
        holds(40 * MIB);
    }

    @Test
    public void lostPiecesDoNotCountAndAreReservedAgain() throws IOException {
        room.hold(3 * PIECE);
        worker.blocks.get(1).lost = true;
        assertThat(room.dropLost()).isTrue();
        assertThat(room.dropLost()).isFalse();
        holds(2 * PIECE);
        room.hold(3 * PIECE);
        holds(3 * PIECE);
    }

    @Test
    public void aWorkerThatIsGoneIsAFailure() {
        worker.answers = false;
        assertThatThrownBy(() -> room.hold(PIECE)).isInstanceOf(IOException.class);
        assertThat(room.heldBytes()).isZero();
    }

    @Test
    public void allIsGivenBack() throws IOException {
        room.hold(5 * PIECE + 3 * MIB);
        room.clear();
        holds(0);
    }
}
