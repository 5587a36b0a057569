/*
 * A vectored read: all ranges in one native call into the buffers of the caller. What is resident
 * is there when the call returns; the node brings in the rest meanwhile, and threads of the client
 * wait for it, each for a range.
 */
package io.tidepool.hadoop;

import java.io.EOFException;
import java.io.IOException;
import java.lang.ref.Reference;
import java.nio.ByteBuffer;
import java.util.Arrays;
import java.util.List;
import java.util.Objects;
import java.util.concurrent.CancellationException;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.RejectedExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.function.Consumer;
import java.util.function.IntFunction;
import org.apache.hadoop.fs.FSExceptionMessages;
import org.apache.hadoop.fs.FileRange;

final class VectoredRead {

    private final Object stream;
    private final NativeFile file;
    private final ReadStatistics statistics;
    private final Waiters.OfStream waits;
    private final Consumer<ByteBuffer> release;

    /**
     * For one read.
     *
     * @param stream whose drop would close the file; it is not dropped before the last range ends
     * @param waits of the stream, which its reads share
     */
    VectoredRead(Object stream, NativeFile file, ReadStatistics statistics,
            Waiters.OfStream waits, Consumer<ByteBuffer> release) {
        this.stream = stream;
        this.file = file;
        this.statistics = statistics;
        this.waits = waits;
        this.release = Objects.requireNonNull(release, "no way to release buffers");
    }

    /** Starts the read of all ranges; each gets its future. */
    void start(List<? extends FileRange> ranges, IntFunction<ByteBuffer> allocate)
            throws IOException {
        int count = ranges.size();
        for (FileRange range : ranges) {
            validate(range);
        }
        statistics.vectored(count);
        long[] offsets = new long[count];
        Object[] targets = new Object[count];
        int[] places = new int[2 * count];
        ByteBuffer[] buffers = allocateAll(ranges, allocate);
        for (int index = 0; index < count; index++) {
            FileRange range = ranges.get(index);
            ByteBuffer buffer = buffers[index];
            offsets[index] = range.getOffset();
            targets[index] = buffer.isDirect() ? buffer : buffer.array();
            int start = buffer.isDirect() ? 0 : buffer.arrayOffset();
            places[2 * index] = start + buffer.position();
            places[2 * index + 1] = range.getLength();
        }
        try {
            file.readRangesHeld(offsets, targets, places);
        } catch (IOException | RuntimeException error) {
            List.of(buffers).forEach(release);
            throw error;
        }
        for (int index = 0; index < count; index++) {
            finish(ranges.get(index), buffers[index], places[2 * index + 1]);
        }
        Reference.reachabilityFence(stream);
    }

    /** The bytes of a range. An interrupt of the thread that waits ends the read. */
    private static final class Pending extends CompletableFuture<ByteBuffer> {

        private final NativeFile file;

        Pending(NativeFile file) {
            this.file = file;
        }

        @Override
        public ByteBuffer get() throws InterruptedException, ExecutionException {
            try {
                return super.get();
            } catch (InterruptedException error) {
                file.endReads();
                throw error;
            }
        }

        @Override
        public ByteBuffer get(long timeout, TimeUnit unit)
                throws InterruptedException, ExecutionException, TimeoutException {
            try {
                return super.get(timeout, unit);
            } catch (InterruptedException error) {
                file.endReads();
                throw error;
            }
        }

        @Override
        public ByteBuffer join() {
            try {
                return get();
            } catch (InterruptedException error) {
                Thread.currentThread().interrupt();
            } catch (ExecutionException | CancellationException error) {
                // Told as a join tells it.
            }
            return super.join();
        }
    }

    /** As Hadoop does, whose own method is another one in each of its versions. */
    private static void validate(FileRange range) throws EOFException {
        Objects.requireNonNull(range, "a range is null");
        if (range.getLength() < 0) {
            throw new IllegalArgumentException("the length is negative in " + range);
        }
        if (range.getOffset() < 0) {
            throw new EOFException("the position is negative in " + range);
        }
    }

    private ByteBuffer[] allocateAll(
            List<? extends FileRange> ranges, IntFunction<ByteBuffer> allocate) {
        ByteBuffer[] buffers = new ByteBuffer[ranges.size()];
        try {
            for (int index = 0; index < buffers.length; index++) {
                int length = ranges.get(index).getLength();
                ByteBuffer buffer = allocate.apply(length);
                buffers[index] = buffer;
                if (buffer.capacity() - buffer.position() < length || buffer.isReadOnly()) {
                    throw new IllegalArgumentException(
                            "the allocator gave " + buffer + " for " + length + " bytes");
                }
                buffer.limit(buffer.position() + length);
            }
        } catch (RuntimeException | Error error) {
            Arrays.stream(buffers).filter(Objects::nonNull).forEach(release);
            throw error;
        }
        return buffers;
    }

    /** Completes a range, now or by a thread that waits for the rest of it. */
    private void finish(FileRange range, ByteBuffer buffer, int held) {
        int length = range.getLength();
        int done = Math.max(held, 0);
        statistics.range(done, length);
        CompletableFuture<ByteBuffer> data = new Pending(file);
        range.setData(data);
        if (done == length) {
            data.complete(buffer);
            return;
        }
        long offset = range.getOffset();
        Runnable wait = () -> {
            finishWaiting(data, buffer, offset, done);
            Reference.reachabilityFence(stream);
        };
        try {
            file.client().waiters.execute(waits, wait);
        } catch (RejectedExecutionException closed) {
            // The file system is closed and the stream is not, or there are too many threads.
            wait.run();
        }
    }

    private void finishWaiting(
            CompletableFuture<ByteBuffer> data, ByteBuffer buffer, long offset, int held) {
        int start = buffer.position();
        try {
            ByteBuffer rest = buffer.duplicate().position(start + held);
            long from = offset + held;
            while (rest.hasRemaining()) {
                int bytes = file.read(from, rest);
                if (bytes < 0) {
                    throw new EOFException(FSExceptionMessages.EOF_IN_READ_FULLY);
                }
                from += bytes;
                statistics.rangeGoesOn(bytes);
            }
            data.complete(buffer);
        } catch (IOException | RuntimeException | Error error) {
            release.accept(buffer);
            data.completeExceptionally(error);
        }
    }
}
