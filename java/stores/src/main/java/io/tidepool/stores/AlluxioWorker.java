package io.tidepool.stores;

import alluxio.client.block.BlockMasterClient;
import alluxio.client.block.options.GetWorkerReportOptions;
import alluxio.client.block.options.GetWorkerReportOptions.WorkerInfoField;
import alluxio.client.block.stream.BlockWorkerClient;
import alluxio.client.file.FileSystemContext;
import alluxio.resource.CloseableResource;
import alluxio.wire.WorkerInfo;
import java.io.IOException;
import java.net.InetAddress;
import java.net.NetworkInterface;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ThreadLocalRandom;

/**
 * The first level of a worker of Alluxio. Its capacity is fixed, so what it must not hold is
 * reserved: the worker evicts by its own order to make room, and the room stays empty. Where this
 * program ends, the worker drops what was reserved.
 */
final class AlluxioWorker implements ResizableStore, Reserver {

    private static final long PIECE_BYTES = 64 << 20;
    private static final long PIECES = 64;
    /** A worker aborts a block within milliseconds after the call for it was cancelled. */
    private static final long SETTLE_MS = 50;
    private static final long WATCH_MS = 500;
    /** Numbers of containers are given by the master, from 0 on: these are never reached. */
    private static final long CONTAINER_MIN = 1L << 38;
    private static final int CONTAINER_SHIFT = 24;
    private static final String LEVEL = "MEM";

    private final FileSystemContext context;
    private final String wanted;
    private CloseableResource<BlockWorkerClient> client;
    private HeldRoom room;
    private long capacityBytes;
    private long targetBytes = Long.MAX_VALUE;

    private AlluxioWorker(String wanted) {
        this.wanted = wanted;
        context = FileSystemContext.create();
    }

    /** Finds the worker, and watches it from then on. */
    static AlluxioWorker open(String wanted) throws IOException {
        prepare("alluxio.user.rpc.retry.max.duration", "5s");
        prepare("alluxio.user.metrics.collection.enabled", "false");
        AlluxioWorker worker = new AlluxioWorker(wanted);
        worker.connect();
        Thread watch = new Thread(worker::watch, "watch");
        watch.setDaemon(true);
        watch.start();
        return worker;
    }

    /** As options of the virtual machine, which the site may set otherwise. */
    private static void prepare(String name, String value) {
        if (System.getProperty(name) == null) {
            System.setProperty(name, value);
        }
    }

    @Override
    public synchronized long resize(long bytes) throws IOException {
        targetBytes = bytes;
        apply();
        return capacityBytes - room.heldBytes();
    }

    @Override
    public TemporaryBlock reserve(long bytes) throws IOException {
        long container = ThreadLocalRandom.current().nextLong(CONTAINER_MIN, 2 * CONTAINER_MIN);
        return new TemporaryBlock(client.get(), BlockWorkerClient.class,
                container << CONTAINER_SHIFT, bytes);
    }

    @Override
    public void settle() {
        try {
            Thread.sleep(SETTLE_MS);
        } catch (InterruptedException stop) {
            Thread.currentThread().interrupt();
        }
    }

    private void apply() throws IOException {
        if (client == null || room.dropLost()) {
            connect();
        }
        try {
            room.hold(Math.max(0, capacityBytes - targetBytes));
        } catch (IOException | RuntimeException failed) {
            disconnect();
            throw failed;
        }
    }

    /** A worker that was restarted has lost what was reserved, and has it reserved again. */
    private void watch() {
        boolean told = false;
        while (true) {
            try {
                Thread.sleep(WATCH_MS);
                synchronized (this) {
                    if (client == null || room.dropLost()) {
                        apply();
                    }
                }
                told = false;
            } catch (IOException | RuntimeException failed) {
                if (!told) {
                    System.err.println("the worker of Alluxio: " + failed);
                }
                told = true;
            } catch (InterruptedException stop) {
                return;
            }
        }
    }

    private void connect() throws IOException {
        disconnect();
        WorkerInfo found = find();
        client = context.acquireBlockWorkerClient(found.getAddress());
        capacityBytes = level(found.getCapacityBytesOnTiers());
        room = new HeldRoom(this, Math.max(PIECE_BYTES, capacityBytes / PIECES));
        probe();
    }

    /**
     * Opens the connection, and finds out before the first command whether the worker evicts for
     * what is reserved: one that keeps pages answers as others do, has no file, and evicts nothing.
     */
    private void probe() throws IOException {
        TemporaryBlock block = reserve(0);
        boolean hasFile = Files.exists(Path.of(block.path()));
        block.cancel();
        if (!hasFile) {
            throw new UnsupportedOperationException("no " + block.path() + " here: the worker keeps"
                    + " pages and not blocks, or its directory is not seen");
        }
    }

    private void disconnect() {
        if (client != null) {
            room.clear();
            client.close();
            client = null;
        }
    }

    private WorkerInfo find() throws IOException {
        GetWorkerReportOptions options = GetWorkerReportOptions.defaults()
                .setFieldRange(WorkerInfoField.ALL);
        List<WorkerInfo> workers;
        try (CloseableResource<BlockMasterClient> master =
                context.acquireBlockMasterClientResource()) {
            workers = master.get().getWorkerReport(options);
        }
        List<WorkerInfo> found = workers.stream().filter(this::isWanted).toList();
        if (found.size() == 1) {
            return found.get(0);
        }
        List<String> names = workers.stream().map(AlluxioWorker::name).toList();
        throw new IOException(found.isEmpty()
                ? "no live worker " + (wanted.isEmpty() ? "on this machine" : wanted)
                        + "; the master knows " + names
                : "several workers on this machine: name one of " + names);
    }

    private boolean isWanted(WorkerInfo worker) {
        if (!wanted.isEmpty()) {
            return name(worker).equals(wanted);
        }
        try {
            InetAddress address = InetAddress.getByName(worker.getAddress().getHost());
            return NetworkInterface.getByInetAddress(address) != null;
        } catch (IOException unknown) {
            return false;
        }
    }

    private static String name(WorkerInfo worker) {
        return worker.getAddress().getHost() + ":" + worker.getAddress().getRpcPort();
    }

    private static long level(Map<String, Long> levels) {
        if (levels.containsKey(LEVEL)) {
            return levels.get(LEVEL);
        }
        if (levels.size() == 1) {
            return levels.values().iterator().next();
        }
        throw new UnsupportedOperationException("the worker has no level " + LEVEL + " but "
                + levels.keySet());
    }
}
