package io.tidepool.plane;

import java.net.URI;
import java.nio.file.Path;
import java.util.Optional;
import org.apache.flink.configuration.Configuration;

/** Flink's own settings. Those of memory hold where the job is its own cluster. */
final class Settings {

    private static final String LATEST = "latest";

    private Settings() {
    }

    static Configuration of(Options options) {
        Configuration settings = new Configuration();
        settings.setString("execution.buffer-timeout.interval", options.bufferTimeoutMs + "ms");
        settings.setString("pipeline.generic-types", "false");
        settings.setString("execution.checkpointing.interval", options.checkpointIntervalMs + "ms");
        settings.setString("execution.checkpointing.num-retained", "2");
        settings.setString("execution.checkpointing.externalized-checkpoint-retention",
                "RETAIN_ON_CANCELLATION");
        // A file system that is away for a while is no reason to stop.
        settings.setString("execution.checkpointing.tolerable-failed-checkpoints", "1000000");
        settings.setString("restart-strategy.type", "exponential-delay");
        settings.setString("restart-strategy.exponential-delay.initial-backoff", "500ms");
        settings.setString("restart-strategy.exponential-delay.max-backoff", "10s");
        settings.setString("taskmanager.numberOfTaskSlots", Integer.toString(options.parallelism));
        settings.setString("taskmanager.memory.network.min", "16m");
        settings.setString("taskmanager.memory.network.max", "16m");
        settings.setString("taskmanager.memory.managed.size", "1m");
        if (!options.checkpoints.isEmpty()) {
            settings.setString("execution.checkpointing.dir", uri(options.checkpoints).toString());
        }
        restored(options).ifPresent(
                path -> settings.setString("execution.state-recovery.path", path));
        if (options.restore.equals(LATEST)) {
            // Its own checkpoint of before: it is deleted once there is a newer one.
            settings.setString("execution.state-recovery.claim-mode", "CLAIM");
        }
        return settings;
    }

    /** The checkpoint to go on from. */
    private static Optional<String> restored(Options options) {
        if (!options.restore.equals(LATEST)) {
            return options.restore.isEmpty() ? Optional.empty()
                    : Optional.of(uri(options.restore).toString());
        }
        URI directory = uri(options.checkpoints);
        if (!"file".equals(directory.getScheme())) {
            throw new IllegalArgumentException(
                    "--restore latest looks into --checkpoints, which is to be a directory here");
        }
        return new KeptCheckpoints(Path.of(directory),
                words -> System.err.println("plane: " + words)).latest();
    }

    /** A path without a scheme is one of this machine. */
    private static URI uri(String text) {
        URI uri = URI.create(text);
        return uri.getScheme() == null ? Path.of(text).toAbsolutePath().toUri() : uri;
    }
}
