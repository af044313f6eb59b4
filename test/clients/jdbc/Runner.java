/*
 * The scenario and the race by PostgreSQL's JDBC driver (../lib/scenario.py,
 * ../lib/race.py).
 */
import static java.nio.charset.StandardCharsets.UTF_8;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.net.URLDecoder;
import java.net.URLEncoder;
import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.sql.Statement;
import java.sql.Types;
import java.time.Instant;
import java.time.OffsetDateTime;
import java.time.ZoneOffset;
import java.time.temporal.ChronoUnit;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import java.util.UUID;
import java.util.stream.Collectors;
import org.postgresql.util.PGInterval;
import org.postgresql.util.PGobject;
import org.postgresql.util.PSQLException;

public class Runner {
  static final Map<String, String> WAYS = Map.of(
      "extended", "&prepareThreshold=0", // also what a pooler in transaction mode wants
      "prepared", "&prepareThreshold=-1", // from the first call on, and so binary
      "simple", "&preferQueryMode=simple");

  final Connection db;
  final boolean simple;
  final Map<String, Object> kept = new HashMap<>();

  Runner(Connection db, String way) {
    this.db = db;
    simple = way.equals("simple");
  }

  static String encode(String text) {
    return URLEncoder.encode(text, UTF_8).replace("+", "%20");
  }

  static String decode(String text) {
    return URLDecoder.decode(text.replace("+", "%2B"), UTF_8);
  }

  /* Placeholders are ?, so the operator ? is ??; not within literals. */
  static String placeholders(String sql) {
    String[] parts = sql.split("'", -1);
    for (int i = 0; i < parts.length; i += 2) {
      parts[i] = parts[i].replace("?", "??").replaceAll("\\$\\d+", "?");
    }
    return String.join("'", parts);
  }

  void bind(PreparedStatement call, int at, String kind, String text) throws SQLException {
    switch (kind) {
      case "text" -> call.setString(at, text);
      case "untyped" -> call.setObject(at, text, Types.OTHER);
      case "integer" -> call.setInt(at, Integer.parseInt(text));
      case "boolean" -> call.setBoolean(at, text.equals("t"));
      case "bytea" -> {
        if (simple) { // in which setBytes makes a broken statement
          call.setObject(at, "\\x" + text, Types.OTHER);
        } else {
          call.setBytes(at, HexFormat.of().parseHex(text));
        }
      }
      case "uuid" -> call.setObject(at, UUID.fromString(text));
      case "jsonb" -> {
        PGobject json = new PGobject();
        json.setType("jsonb");
        json.setValue(text);
        call.setObject(at, json);
      }
      case "interval" -> call.setObject(at, new PGInterval(0, 0, 0, 0, 0, Long.parseLong(text) / 1e6));
      case "text[]" -> call.setArray(at, db.createArrayOf("text", Arrays.stream(text.split("\\|"))
          .filter(item -> !item.isEmpty()).map(Runner::decode).toArray()));
      default -> throw new IllegalArgumentException(kind);
    }
  }

  static Object fetch(ResultSet rows, int at, String kind) throws SQLException {
    Object value = switch (kind) {
      case "integer" -> rows.getInt(at);
      case "bigint" -> rows.getLong(at);
      case "boolean" -> rows.getBoolean(at);
      case "bytea" -> rows.getBytes(at);
      case "timestamptz" -> rows.getObject(at, OffsetDateTime.class);
      case "text[]" -> rows.getArray(at) == null ? null : rows.getArray(at).getArray();
      default -> rows.getObject(at);
    };
    return rows.wasNull() ? null : value;
  }

  static String show(Object value) {
    if (value == null) {
      return "null";
    }
    String text;
    if (value instanceof Boolean truth) {
      text = truth ? "t" : "f";
    } else if (value instanceof byte[] bytes) {
      text = HexFormat.of().formatHex(bytes);
    } else if (value instanceof PGInterval i) {
      text = String.valueOf(Math.round(((i.getHours() * 60 + i.getMinutes()) * 60 + i.getSeconds()) * 1e6));
    } else if (value instanceof OffsetDateTime moment) {
      text = String.valueOf(ChronoUnit.MICROS.between(Instant.EPOCH, moment.toInstant()));
    } else if (value instanceof String[] items) {
      return "String[]=" + Arrays.stream(items).map(Runner::encode).collect(Collectors.joining("|"));
    } else {
      text = value.toString();
    }
    return encode(value.getClass().getSimpleName()) + "=" + encode(text);
  }

  List<String> query(String sql, String parameters, String columns) throws SQLException {
    try (PreparedStatement call = db.prepareStatement(placeholders(decode(sql)))) {
      int at = 1;
      for (String parameter : parameters.isEmpty() ? new String[0] : parameters.split(" ")) {
        String[] parts = parameter.split("=", 2);
        if (parts[0].equals("null")) {
          call.setObject(at++, null);
        } else if (parts[1].startsWith("@")) {
          call.setObject(at++, kept.get(parts[1].substring(1)));
        } else {
          bind(call, at++, parts[0], parts[0].equals("text[]") ? parts[1] : decode(parts[1]));
        }
      }
      List<String> results = new ArrayList<>();
      try (ResultSet rows = call.executeQuery()) {
        while (rows.next()) {
          results.add(row(rows, columns.split(" ")));
        }
      }
      return results;
    }
  }

  String row(ResultSet rows, String[] columns) throws SQLException {
    List<String> values = new ArrayList<>();
    for (String column : columns) {
      String[] parts = column.split(">");
      Object value = fetch(rows, values.size() + 1, parts[0]);
      if (parts.length > 1) {
        kept.put(parts[1], value);
      }
      values.add(show(value));
    }
    return String.join(" ", values);
  }

  void act(String what) throws SQLException {
    switch (what) {
      case "begin" -> db.setAutoCommit(false);
      case "commit" -> {
        try {
          db.commit();
        } finally {
          db.setAutoCommit(true);
        }
      }
      case "rollback" -> {
        db.rollback();
        db.setAutoCommit(true);
      }
      default -> {
        try (Statement statement = db.createStatement()) {
          statement.execute(what + " s");
        }
      }
    }
  }

  void conformance(List<String> lines) {
    for (String line : lines) {
      String[] fields = line.split("\t", -1);
      try {
        List<String> rows = List.of();
        if (fields[1].equals("query")) {
          rows = query(fields[2], fields[3], fields[4]);
        } else {
          act(fields[1]);
        }
        System.out.println(fields[0] + "\tok" + rows.stream().map(r -> "\t" + r).collect(Collectors.joining()));
      } catch (PSQLException e) {
        var message = e.getServerErrorMessage();
        String column = message == null ? null : message.getColumn();
        System.out.println(fields[0] + "\terror\t" + e.getSQLState() + "\t" + (column == null ? "" : column));
      } catch (SQLException | RuntimeException e) {
        System.out.println(fields[0] + "\terror\t" + encode(e.toString()) + "\t");
      }
    }
  }

  /* The race. */

  record Answer(String outcome, UUID token, String body) {}

  Answer claim(String sql, String key) throws SQLException {
    try (PreparedStatement call = db.prepareStatement(sql)) {
      call.setString(1, key);
      call.setString(2, "{\"key\": \"" + key + "\"}");
      try (ResultSet row = call.executeQuery()) {
        row.next();
        return new Answer(row.getString("outcome"), row.getObject("token", UUID.class),
            row.getString("response_body"));
      }
    }
  }

  void call(String sql, Object... arguments) throws SQLException {
    try (PreparedStatement call = db.prepareStatement(sql)) {
      for (int i = 0; i < arguments.length; i++) {
        call.setObject(i + 1, arguments[i]);
      }
      call.execute();
    }
  }

  void effect(String flow, String key, String me) throws SQLException {
    call("INSERT INTO effect VALUES (?, ?, ?, ?)", flow, key, me, ProcessHandle.current().pid());
  }

  String bodyFor(String key, String me) {
    return key + " by " + me + ", " + ProcessHandle.current().pid() + " \uD83E\uDED6";
  }

  Answer transactional(String key, String me) throws SQLException {
    db.setAutoCommit(false);
    try {
      Answer answer = claim("SELECT * FROM idem_claim('race', ?, request => ?::jsonb, wait => '20 ms')", key);
      if (answer.outcome().equals("claimed")) {
        answer = new Answer("claimed", null, bodyFor(key, me));
        effect("transactional", key, me);
        call("SELECT idem_finish('race', ?, response_body => ?)", key, answer.body());
      }
      db.commit();
      return answer;
    } catch (SQLException e) {
      db.rollback();
      throw e;
    } finally {
      db.setAutoCommit(true);
    }
  }

  Answer leased(String key, String me) throws SQLException {
    Answer answer = claim("SELECT * FROM idem_claim('leased race', ?, request => ?::jsonb, lease => '10 min')", key);
    if (!answer.outcome().equals("claimed")) {
      return answer;
    }
    effect("outside", key, me);
    String body = bodyFor(key, me);
    db.setAutoCommit(false);
    try {
      effect("leased", key, me);
      call("SELECT idem_finish('leased race', ?, token => ?, response_body => ?)", key, answer.token(), body);
      db.commit();
    } catch (SQLException e) {
      db.rollback();
      throw e;
    } finally {
      db.setAutoCommit(true);
    }
    return new Answer("claimed", answer.token(), body);
  }

  void race(List<String> lines, String me) throws SQLException {
    var turns = new ArrayDeque<>(lines);
    while (!turns.isEmpty()) {
      String turn = turns.remove();
      String[] parts = turn.split("\t");
      Answer answer = parts[0].equals("leased") ? leased(parts[1], me) : transactional(parts[1], me);
      String body = answer.body() == null ? "" : encode(answer.body());
      System.out.println(turn + "\t" + answer.outcome() + "\t" + body);
      if (answer.outcome().equals("in_progress")) {
        turns.add(turn);
      }
    }
  }

  public static void main(String[] arguments) throws Exception {
    try (Connection db = DriverManager.getConnection(System.getenv("JDBC_URL") + WAYS.get(arguments[0]))) {
      List<String> lines = new BufferedReader(new InputStreamReader(System.in, UTF_8)).lines().toList();
      Runner runner = new Runner(db, arguments[0]);
      if (arguments.length > 1) {
        runner.race(lines, arguments[1]);
      } else {
        runner.conformance(lines);
      }
    }
  }
}
