package io.tidepool.plane;

import java.util.List;
import java.util.TreeSet;

/** Sums over the nodes of a cluster, of a rack or of a job. */
final class Sums {

    /** Names of silent nodes that are told, the first by their letters. */
    static final int SILENT_NAMES = 8;

    private static final int MS_PER_S = 1000;

    private final Counts counts = new Counts();
    private final TreeSet<String> silent = new TreeSet<>();
    private long nodes;
    private long silentNodes;
    private long totalBytes;
    private long availableBytes;
    private long demandBytes;
    private long residentBytes;
    private long capacityBytes;
    private long ceilingBytes;
    private long jobBytes;
    private long lagMs = Reading.UNKNOWN;

    /** Adds what is known of a node; {@code ownBytes} are those of the job that is summed up. */
    void add(Report node, long ownBytes) {
        counts.add(node.counts);
        if (!node.taken) {
            return;
        }
        nodes++;
        totalBytes = Law.add(totalBytes, node.totalBytes);
        availableBytes = Law.add(availableBytes, Math.max(0, node.availableBytes));
        demandBytes = Law.add(demandBytes, node.demandBytes);
        residentBytes = Law.add(residentBytes, node.residentBytes);
        capacityBytes = Law.add(capacityBytes, node.capacityBytes);
        ceilingBytes = Law.add(ceilingBytes, Math.max(0, node.ceilingBytes));
        jobBytes = Law.add(jobBytes, ownBytes);
        lagMs = Math.max(lagMs, node.lagMs);
    }

    /** Counts a node that was heard from before and is silent now. */
    void addSilent(Report node) {
        silentNodes++;
        silent.add(node.node);
        if (silent.size() > SILENT_NAMES) {
            silent.pollLast();
        }
    }

    /** The fields after those that say what is summed up; counts are of the last {@code spanMs}. */
    String json(JsonText text, String plane, PolicyName policy, long atMs, long spanMs) {
        text.field("plane", plane).field("policy", policy.text).field("at_ms", atMs)
                .field("span_ms", spanMs).field("nodes", nodes).field("silent_nodes", silentNodes)
                .names("silent", List.copyOf(silent)).field("memory_total_bytes", totalBytes)
                .field("available_bytes", availableBytes).field("demand_bytes", demandBytes)
                .field("resident_bytes", residentBytes).field("capacity_bytes", capacityBytes)
                .field("ceiling_bytes", ceilingBytes).field("job_bytes", jobBytes);
        counts.write(text);
        text.field("decisions_per_s", counts.decisions * MS_PER_S / Math.max(1, spanMs));
        if (lagMs == Reading.UNKNOWN) {
            text.field("lag_ms", (String) null);
        } else {
            text.field("lag_ms", lagMs);
        }
        return text.close().toString();
    }
}
