package io.tidepool.plane;

import com.fasterxml.jackson.core.JsonToken;
import java.io.IOException;
import java.io.Serializable;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.function.Consumer;

/**
 * Reads messages of agents: one sample or an array of them. What is not understood, or is of
 * another node than the key of its record, becomes a reading of the kind {@link Reading#GARBAGE};
 * nothing in a message is an error of the job.
 */
final class SampleReader implements Serializable {

    private static final long serialVersionUID = 1;
    /** The form of samples that is understood. */
    private static final long FORM = 1;
    /** Time between samples where none is told. */
    private static final long INTERVAL_MS = 100;
    private static final long LONGEST_INTERVAL_MS = 3_600_000;

    /** The one cluster that is served; empty for all. */
    private final String cluster;
    private final int maxStores;
    private final int maxJobs;

    SampleReader(String cluster, int maxStores, int maxJobs) {
        this.cluster = cluster;
        this.maxStores = maxStores;
        this.maxJobs = maxJobs;
    }

    void read(byte[] key, byte[] message, long recordMs, Consumer<Reading> out) {
        if (message == null || message.length > Json.MESSAGE_BYTES) {
            out.accept(Reading.of(Reading.GARBAGE, recordMs));
            return;
        }
        try {
            Json json = new Json(message);
            JsonToken first = json.next();
            if (first == JsonToken.START_ARRAY) {
                while (json.next() != JsonToken.END_ARRAY) {
                    out.accept(one(json, key, recordMs));
                }
            } else {
                out.accept(one(json, key, recordMs));
            }
        } catch (IOException | RuntimeException broken) {
            // What was whole before the break has been handed on.
            out.accept(Reading.of(Reading.GARBAGE, recordMs));
        }
    }

    private Reading one(Json json, byte[] key, long recordMs) throws IOException {
        json.bad = false;
        Reading reading = Reading.of(Reading.SAMPLE, recordMs);
        reading.stepMs = INTERVAL_MS;
        reading.number = -1;
        reading.atMs = -1;
        long form = 0;
        if (json.isObject()) {
            for (String name = json.field(); name != null; name = json.field()) {
                if (name.equals("form")) {
                    form = json.whole();
                } else {
                    field(json, name, reading);
                }
            }
        }
        boolean whole = form == FORM && !reading.cluster.isEmpty() && !reading.node.isEmpty()
                && !reading.start.isEmpty() && reading.number >= 0 && reading.atMs >= 0
                && reading.totalBytes > 0 && reading.stepMs > 0
                && reading.stepMs <= LONGEST_INTERVAL_MS && reading.isOf(key);
        if (json.bad || !whole) {
            return Reading.of(Reading.GARBAGE, recordMs);
        }
        if (!cluster.isEmpty() && !cluster.equals(reading.cluster)) {
            return Reading.of(Reading.FOREIGN, recordMs);
        }
        return reading;
    }

    private void field(Json json, String name, Reading reading) throws IOException {
        switch (name) {
            case "cluster" -> reading.cluster = json.name(Json.NODE_NAME);
            case "node" -> reading.node = json.name(Json.NODE_NAME);
            case "start" -> reading.start = json.name(Json.NAME);
            case "number" -> reading.number = json.whole();
            case "at_ms" -> reading.atMs = json.whole();
            case "interval_ms" -> reading.stepMs = json.whole();
            case "memory_total_bytes" -> reading.totalBytes = json.whole();
            case "available_bytes" ->
                reading.availableBytes = json.isNull() ? Reading.UNKNOWN : json.whole();
            case "demand_bytes" -> reading.demandBytes = json.whole();
            case "rack" -> reading.rack = json.isNull() ? "" : json.name(Json.NAME);
            case "stores" -> reading.stores = stores(json);
            case "jobs" -> reading.jobs = jobs(json, reading);
            default -> json.skip();
        }
    }

    private StoreFacts[] stores(Json json) throws IOException {
        List<StoreFacts> stores = new ArrayList<>();
        if (json.isArray()) {
            while (json.next() != JsonToken.END_ARRAY) {
                StoreFacts store = store(json);
                if (stores.size() == maxStores) {
                    // Ceilings for some of the stores would leave the others without bounds.
                    json.bad = true;
                } else {
                    stores.add(store);
                }
            }
        }
        // Two stores of one name cannot be told apart in a ceiling.
        json.bad |= stores.stream().map(store -> store.name).distinct().count() < stores.size();
        return stores.toArray(new StoreFacts[0]);
    }

    private static StoreFacts store(Json json) throws IOException {
        StoreFacts store = new StoreFacts("", -1, -1, -1, 1);
        if (!json.isObject()) {
            return store;
        }
        for (String name = json.field(); name != null; name = json.field()) {
            switch (name) {
                case "name" -> store.name = json.name(Json.NAME);
                case "resident_bytes" -> store.residentBytes = json.whole();
                case "capacity_bytes" -> store.capacityBytes = json.whole();
                case "min_bytes" -> store.minBytes = json.whole();
                case "max_bytes" -> store.maxBytes = json.whole();
                case "block_bytes" -> store.blockBytes = json.whole();
                case "held_bytes" -> store.heldBytes = json.whole();
                default -> json.skip();
            }
        }
        json.bad |= store.name.isEmpty() || store.capacityBytes < 0 || store.minBytes < 0
                || store.maxBytes < 0;
        return store;
    }

    /** Jobs beyond the bound and those without a usable name are left out, the sample is kept. */
    private JobUse[] jobs(Json json, Reading reading) throws IOException {
        JobUse[] jobs = new JobUse[maxJobs];
        int count = 0;
        if (!json.isNull() && json.isArray()) {
            while (json.next() != JsonToken.END_ARRAY) {
                JobUse job = job(json);
                if (count == maxJobs || job.name == null || job.user == null) {
                    reading.trimmed++;
                } else {
                    jobs[count++] = job;
                }
            }
        }
        return Arrays.copyOf(jobs, count);
    }

    private static JobUse job(Json json) throws IOException {
        JobUse job = new JobUse(null, "", 0);
        if (!json.isObject()) {
            return job;
        }
        for (String name = json.field(); name != null; name = json.field()) {
            switch (name) {
                case "name" -> job.name = json.shortName(Json.NAME);
                case "user" -> job.user = json.isNull() ? "" : json.shortName(Json.NAME);
                case "bytes" -> job.bytes = json.whole();
                default -> json.skip();
            }
        }
        return job;
    }
}
